//! Teams as users of the command see them.

mod subagents {
    use crate::cli::House;

    const CONFIG: &str = "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n[teams]\n";

    /// Starts a member that claims a task, and says who is there.
    const SCRIPT: &str = r#"
[[rules]]
when = { user_contains = "begin", assistant_messages = 0 }
reply = { calls = [{ name = "team_task_create", arguments = { subject = "Look", description = "Look around." } }] }

[[rules]]
when = { user_contains = "begin", assistant_messages = 1 }
reply = { calls = [{ name = "spawn_teammate", arguments = { name = "ann", description = "Looks.", prompt = "claim it" } }] }

[[rules]]
when = { user_contains = "begin", assistant_messages = 2 }
reply = { calls = [{ name = "wait_agent" }] }

[[rules]]
when = { user_contains = "claim", assistant_messages = 0 }
reply = { calls = [{ name = "team_task_update", arguments = { task_id = "task-1", expected_revision = 1, action = "claim" } }] }

[[rules]]
when = { user_contains = "again", assistant_messages = 0 }
reply = { calls = [{ name = "list_agents" }, { name = "team_task_list" }] }

[[rules]]
when = { user_contains = "again" }
reply = { text = "There: {{results}}" }

[[rules]]
reply = { text = "ok" }
"#;

    fn house(config: &str) -> House {
        let house = House::new();
        house.write("s.toml", SCRIPT);
        house.write("playhouse.toml", config);
        house
    }

    #[test]
    fn a_team_of_the_command_is_there_in_its_next_run() {
        let house = house(CONFIG);
        let ended = house.run(&["run", "--model", "s/any", "--session", "lead", "begin"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let ended = house.run(&["run", "--model", "s/any", "--resume", "lead", "again"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for expected in [
            r#""teamId":"lead","you":"lead""#,
            r#""name":"ann","role":"teammate","status":"inactive""#,
            r#""id":"task-1""#,
        ] {
            // The order of keys is the printer's.
            let told = expected.split(',').all(|part| ended.out.contains(part));
            assert!(told, "{expected}: {ended:?}");
        }
    }

    #[test]
    fn without_the_table_nobody_leads_a_team() {
        let house = house(&CONFIG.replace("[teams]\n", ""));
        let ended = house.run(&["run", "--model", "s/any", "--format", "jsonl", "again"]);
        assert!(ended.out.contains("unknown tool"), "{ended:?}");
    }

    #[test]
    fn a_table_that_makes_no_sense_is_refused_with_its_place() {
        for (table, told) in [
            ("max_members = 0", "teams.max_members"),
            ("max_tasks = -1", "teams.max_tasks"),
            ("max_pending_messages = 0", "teams.max_pending_messages"),
            ("max_message_bytes = 0", "teams.max_message_bytes"),
            ("disposal_timeout_ms = 0", "teams.disposal_timeout_ms"),
            ("disposal_timeout_ms = 2147483648", "disposal_timeout"),
            ("members = 3", "members"),
            ("[[plugin]]\nname = \"lookup\"", "name the plugin subagents, too"),
        ] {
            let house = house(&format!("{CONFIG}{table}\n"));
            let refused = house.run(&["run", "--model", "s/any", "x"]);
            let said = refused.error(2);
            assert!(said.contains(told) && said.contains("playhouse.toml:"), "{table}: {said}");
        }
    }
}
