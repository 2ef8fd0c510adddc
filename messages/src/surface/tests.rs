use serde_json::json;

use super::*;
use crate::testing::{Script, user};

fn nodes(script: &Script) -> Vec<Seq> {
    script.surface.nodes().collect()
}

fn refused(script: &Script, event: &NewEvent, code: &str) {
    assert_eq!(script.surface.check(&script.log, event).unwrap_err().code(), code);
}

/// A log with nodes: 2 system, 3 user, 6 assistant, 8 result, 11 assistant.
fn tool_turn() -> Script {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.system("P");
    script.push(user("u", "u"));
    script.header(&[]);
    script.context();
    script.assistant("", &["c"]);
    script.call("c");
    script.result("c", "out");
    script.end_step(1, 1).step(1, 2);
    script.assistant("done", &[]);
    script.end_step(1, 2);
    assert_eq!(nodes(&script), [2, 3, 6, 8, 11]);
    script
}

#[test]
fn positions_order_the_surface_not_seqs() {
    let mut script = tool_turn();
    script.replace(user("s", "summary"), 3, 8);
    assert_eq!(nodes(&script), [2, 13, 11]);
    assert_eq!(script.surface.replace_generation(), 1);
    assert_eq!(script.surface.content_generation(), 1);
    // From the later seq to the earlier one: forward on the surface.
    script.replace(user("s2", "summary"), 13, 11);
    assert_eq!(nodes(&script), [2, 14]);
}

#[test]
fn the_head_gives_way_only_to_one_system_message() {
    let mut script = tool_turn();
    refused(
        &script,
        &NewEvent::replace(user("x", "x").body, 2, 2, vec![2]),
        "SYSTEM_HEAD_PROTECTED",
    );
    let system = script.system_event("Q");
    refused(&script, &NewEvent::replace(system.clone(), 2, 3, vec![2, 3]), "SYSTEM_HEAD_PROTECTED");
    script.push(NewEvent::replace(system, 2, 2, vec![2]));
    // A later system node has no protection.
    script.system("R");
    let tail = script.log.len() - 1;
    script.replace(user("x", "x"), tail, tail);
    assert_eq!(nodes(&script)[0], 13);
}

#[test]
fn operations_belong_to_surface_events() {
    let script = tool_turn();
    let bare = NewEvent::log_only(user("x", "x").body);
    refused(&script, &bare, "SURFACE_OPERATION_MISSING");
    let turn = EventBody::TurnStart(crate::event::TurnStart { turn: 2 });
    refused(&script, &NewEvent::append(turn.clone()), "NOT_A_SURFACE_EVENT");
    refused(&script, &NewEvent::log_only(turn).citing([0]), "NOT_A_SURFACE_EVENT");
}

mod scenario {
    use super::*;
    use crate::message::Role;

    #[test]
    fn core_148_bad_replacements_are_refused() {
        let script = tool_turn();
        let replace = |start, end, sources: &[Seq]| {
            NewEvent::replace(user("x", "x").body, start, end, sources.to_vec())
        };
        refused(&script, &replace(3, 6, &[3]), "SHADOWED_NODE_NOT_CITED");
        refused(&script, &replace(6, 3, &[3, 6]), "SURFACE_RANGE_REVERSED");
        refused(&script, &replace(0, 3, &[0, 3]), "NOT_A_SURFACE_NODE");
        refused(&script, &replace(3, 99, &[3]), "NOT_A_SURFACE_NODE");
        let result = |edit: &dyn Fn(&mut ToolResult, &mut Message)| {
            let EventBody::ToolResult(mut data) = script.log.get(8).unwrap().body.clone() else {
                unreachable!()
            };
            let mut message = (*data.message).clone();
            message.content = vec![ContentBlock::text("pruned")];
            edit(&mut data, &mut message);
            data.message = Arc::new(message);
            EventBody::ToolResult(data)
        };
        let same = |_: &mut ToolResult, _: &mut Message| {};
        let rewrite = |body| NewEvent::replace(body, 8, 8, vec![8]);
        let code = "INVALID_TOOL_RESULT_REWRITE";
        refused(&script, &rewrite(result(&|data, _| data.step = 2)), code);
        refused(&script, &rewrite(result(&|data, _| data.meta = Some(json!(1)))), code);
        refused(&script, &rewrite(result(&|_, message| message.id = "other".into())), code);
        refused(&script, &rewrite(result(&|_, message| message.is_error = Some(true))), code);
        refused(&script, &NewEvent::replace(result(&same), 6, 8, vec![6, 8]), code);
        refused(&script, &NewEvent::replace(result(&same), 3, 3, vec![3]), code);
        assert_eq!(
            script.surface.check(&script.log, &rewrite(result(&same))),
            Ok(SurfaceChange::Replace { start: 3, end: 3 })
        );
        for op in [
            json!({"op": "replace", "startSeq": 1, "endSeq": 1, "extra": 1}),
            json!({"op": "insert", "startSeq": 1, "endSeq": 1}),
        ] {
            assert!(serde_json::from_value::<SurfaceOp>(op).is_err());
        }
    }

    #[test]
    fn core_117_image_offload_keeps_ids_and_bumps_only_the_content_generation() {
        let mut script = Script::new();
        let image =
            || ContentBlock::Image { attachment: json!({"attachmentId": "a"}), offloaded: false };
        let mut message = Message::user("u", "t");
        message.content.extend([image(), image()]);
        script.push(NewEvent::append(EventBody::UserMessage(Arc::new(message))));
        script.push(user("v", "v"));
        let offload = |targets: Value| NewEvent::custom(IMAGE_OFFLOAD, json!({"targets": targets}));
        for targets in [
            json!([]),
            json!([{"seq": 7, "imageIndexes": [0]}]),
            json!([{"seq": 0, "imageIndexes": []}]),
            json!([{"seq": 0, "imageIndexes": [1, 0]}]),
            json!([{"seq": 0, "imageIndexes": [2]}]),
            json!([{"seq": 0, "imageIndexes": [0]}, {"seq": 0, "imageIndexes": [1]}]),
            json!([{"seq": 0}]),
        ] {
            refused(&script, &offload(targets), "INVALID_PROJECTION");
        }
        script.push(offload(json!([{"seq": 0, "imageIndexes": [1]}])));
        script.push(offload(json!([{"seq": 0, "imageIndexes": [0]}])));
        assert_eq!(nodes(&script), [0, 1]);
        assert_eq!(script.surface.replace_generation(), 0);
        assert_eq!(script.surface.content_generation(), 2);
        let shown = script.history.get(0).unwrap();
        assert_eq!((shown.message.id.as_str(), shown.message.role), ("u", Role::User));
        let offloaded = shown
            .message
            .content
            .iter()
            .filter(|block| matches!(block, ContentBlock::Image { offloaded: true, .. }));
        assert_eq!(offloaded.count(), 2);
        assert_eq!(script.log.get(0).unwrap().body.message().unwrap().content[1], image());
        // A replacement shadows the override with its node.
        script.replace(user("w", "w"), 0, 0);
        assert!(script.surface.overrides.is_empty());
    }

    #[test]
    fn newest_13_a_late_prompt_stands_after_the_users() {
        let mut script = Script::new();
        script.push(user("u", "u"));
        script.turn(1).step(1, 1);
        script.system("P");
        assert_eq!(nodes(&script), [0, 3]);
        script.replace(user("s", "s"), 0, 3); // compaction shadows it
        assert_eq!(script.surface.system_nodes(&script.log).count(), 0);
    }
}
