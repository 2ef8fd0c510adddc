//! What a plugin's host does next: a pure machine.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::service::ServiceInstance;

use super::{PluginStatus, hosted};

/// Which instance of each required service is there, in the order of the requirements.
pub(super) type Instances = Vec<Option<ServiceInstance>>;

#[derive(Debug)]
pub(super) struct Machine {
    name: String,
    requires: Vec<&'static str>,
    attempt: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Waiting,
    SettingUp {
        used: Instances,
    },
    Active {
        used: Instances,
    },
    /// The instances that the failed setup used: with the same ones it would fail again.
    Failed {
        used: Instances,
    },
    Stopped,
}

#[derive(Debug)]
pub(super) enum Input {
    /// Services came or went, or the host has just started.
    Services(Instances),
    Reload(Instances),
    Stop,
    /// A setup ended.
    SetUp {
        attempt: u64,
        outcome: Result<(), Failure>,
    },
}

#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    /// Close the plugin's scope, and drop the setup that runs in it.
    Unwind,
    /// Open a scope and set the plugin up in it.
    SetUp {
        attempt: u64,
    },
    Report(PluginStatus),
    /// Answer everyone who asked for a reload.
    AnswerReloads(Result<(), Failure>),
}

impl Machine {
    pub(super) fn new(name: impl Into<String>, requires: Vec<&'static str>) -> Self {
        Self { name: name.into(), requires, attempt: 0, phase: Phase::Waiting }
    }

    pub(super) fn step(&mut self, input: Input) -> Vec<Effect> {
        match (input, &self.phase) {
            (Input::Reload(_), Phase::Stopped) => {
                vec![Effect::AnswerReloads(Err(hosted::stopped(&self.name)))]
            }
            (_, Phase::Stopped) => Vec::new(),
            (Input::Stop, _) => {
                let mut effects = self.leave();
                self.phase = Phase::Stopped;
                effects.push(Effect::Report(PluginStatus::Stopped));
                effects.push(Effect::AnswerReloads(Err(hosted::stopped(&self.name))));
                effects
            }
            (
                Input::Services(now),
                Phase::SettingUp { used } | Phase::Active { used } | Phase::Failed { used },
            ) if now == *used => Vec::new(),
            (Input::Services(now) | Input::Reload(now), _) => {
                let mut effects = self.leave();
                effects.extend(self.enter(now));
                effects
            }
            (Input::SetUp { attempt, outcome }, Phase::SettingUp { used })
                if attempt == self.attempt =>
            {
                let used = used.clone();
                self.settle(used, outcome)
            }
            // An attempt that was given up before its outcome arrived.
            (Input::SetUp { .. }, _) => Vec::new(),
        }
    }

    fn leave(&self) -> Vec<Effect> {
        match self.phase {
            Phase::SettingUp { .. } | Phase::Active { .. } => vec![Effect::Unwind],
            Phase::Waiting | Phase::Failed { .. } | Phase::Stopped => Vec::new(),
        }
    }

    fn enter(&mut self, now: Instances) -> Vec<Effect> {
        let missing = self.requires.iter().zip(&now).filter(|(_, instance)| instance.is_none());
        let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
        if missing.is_empty() {
            self.attempt += 1;
            self.phase = Phase::SettingUp { used: now };
            return vec![
                Effect::Report(PluginStatus::SettingUp),
                Effect::SetUp { attempt: self.attempt },
            ];
        }
        self.phase = Phase::Waiting;
        let message = format!("plugin `{}` waits for {}", self.name, missing.join(", "));
        vec![
            Effect::Report(PluginStatus::Waiting { missing }),
            Effect::AnswerReloads(Err(Failure::new("PLUGIN_WAITING", message))),
        ]
    }

    fn settle(&mut self, used: Instances, outcome: Result<(), Failure>) -> Vec<Effect> {
        match outcome {
            Ok(()) => {
                self.phase = Phase::Active { used };
                vec![Effect::Report(PluginStatus::Active), Effect::AnswerReloads(Ok(()))]
            }
            Err(failure) => {
                self.phase = Phase::Failed { used };
                vec![
                    Effect::Unwind,
                    Effect::Report(PluginStatus::Failed { failure: failure.clone() }),
                    Effect::AnswerReloads(Err(failure)),
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use playhouse_plugin_api::{scope::Scope, service::Services};

    use super::*;

    /// Some instances of a service, all different.
    fn instances(count: usize) -> Vec<Option<ServiceInstance>> {
        let (services, scope) = (Services::new(), Scope::root("root"));
        let provide = |_| {
            let registration = services.provide(&scope, "a", Arc::new(())).unwrap();
            let instance = services.instance("a");
            registration.remove();
            instance
        };
        (0..count).map(provide).collect()
    }

    fn failure() -> Failure {
        Failure::new("NO", "no")
    }

    /// Effects as words, so that tables stay readable.
    fn words(effects: Vec<Effect>) -> String {
        let word = |effect: Effect| match effect {
            Effect::Unwind => "unwind".to_owned(),
            Effect::SetUp { attempt } => format!("setup{attempt}"),
            Effect::Report(PluginStatus::Waiting { missing }) => {
                format!("waiting({})", missing.join(","))
            }
            Effect::Report(PluginStatus::Failed { failure }) => format!("failed({})", failure.code),
            Effect::Report(status) => format!("{status:?}").to_lowercase(),
            Effect::AnswerReloads(Ok(())) => "ok".to_owned(),
            Effect::AnswerReloads(Err(failure)) => failure.code,
        };
        effects.into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    type Given = fn(&[Option<ServiceInstance>]) -> Vec<Input>;

    /// With `a` and `b` required: what each input does in each phase.
    #[test]
    fn every_phase_takes_every_input() {
        let waiting: Given = |_| vec![Input::Services(vec![None, None])];
        let setting_up: Given = |i| vec![Input::Services(vec![i[0], i[1]])];
        let active: Given = |i| {
            vec![Input::Services(vec![i[0], i[1]]), Input::SetUp { attempt: 1, outcome: Ok(()) }]
        };
        let failed: Given = |i| {
            vec![
                Input::Services(vec![i[0], i[1]]),
                Input::SetUp { attempt: 1, outcome: Err(failure()) },
            ]
        };
        let stopped: Given = |_| vec![Input::Stop];

        let all: Given = |i| vec![Input::Services(vec![i[0], i[1]])];
        let replaced: Given = |i| vec![Input::Services(vec![i[0], i[2]])];
        let one_gone: Given = |i| vec![Input::Services(vec![i[0], None])];
        let reload: Given = |i| vec![Input::Reload(vec![i[0], i[1]])];
        let reload_without: Given = |_| vec![Input::Reload(vec![None, None])];
        let stop: Given = |_| vec![Input::Stop];
        let set_up: Given = |_| vec![Input::SetUp { attempt: 1, outcome: Ok(()) }];
        let fails: Given = |_| vec![Input::SetUp { attempt: 1, outcome: Err(failure()) }];
        let stale: Given = |_| vec![Input::SetUp { attempt: 0, outcome: Ok(()) }];

        let table: &[(&str, Given, &str, Given, &str)] = &[
            ("waiting", waiting, "all", all, "settingup setup1"),
            ("waiting", waiting, "one gone", one_gone, "waiting(b) PLUGIN_WAITING"),
            ("waiting", waiting, "reload", reload, "settingup setup1"),
            ("waiting", waiting, "reload without", reload_without, "waiting(a,b) PLUGIN_WAITING"),
            ("waiting", waiting, "stop", stop, "stopped PLUGIN_STOPPED"),
            ("waiting", waiting, "set up", set_up, ""),
            ("setting up", setting_up, "all", all, ""),
            ("setting up", setting_up, "replaced", replaced, "unwind settingup setup2"),
            ("setting up", setting_up, "one gone", one_gone, "unwind waiting(b) PLUGIN_WAITING"),
            ("setting up", setting_up, "reload", reload, "unwind settingup setup2"),
            ("setting up", setting_up, "stop", stop, "unwind stopped PLUGIN_STOPPED"),
            ("setting up", setting_up, "set up", set_up, "active ok"),
            ("setting up", setting_up, "fails", fails, "unwind failed(NO) NO"),
            ("setting up", setting_up, "stale", stale, ""),
            ("active", active, "all", all, ""),
            ("active", active, "replaced", replaced, "unwind settingup setup2"),
            ("active", active, "one gone", one_gone, "unwind waiting(b) PLUGIN_WAITING"),
            ("active", active, "reload", reload, "unwind settingup setup2"),
            (
                "active",
                active,
                "reload without",
                reload_without,
                "unwind waiting(a,b) PLUGIN_WAITING",
            ),
            ("active", active, "stop", stop, "unwind stopped PLUGIN_STOPPED"),
            ("active", active, "set up", set_up, ""),
            ("failed", failed, "all", all, ""),
            ("failed", failed, "replaced", replaced, "settingup setup2"),
            ("failed", failed, "one gone", one_gone, "waiting(b) PLUGIN_WAITING"),
            ("failed", failed, "reload", reload, "settingup setup2"),
            ("failed", failed, "stop", stop, "stopped PLUGIN_STOPPED"),
            ("failed", failed, "set up", set_up, ""),
            ("stopped", stopped, "all", all, ""),
            ("stopped", stopped, "reload", reload, "PLUGIN_STOPPED"),
            ("stopped", stopped, "stop", stop, ""),
            ("stopped", stopped, "set up", set_up, ""),
        ];
        let instances = instances(3);
        for (phase, given, name, input, expected) in table {
            let mut machine = Machine::new("p", vec!["a", "b"]);
            for input in given(&instances) {
                machine.step(input);
            }
            let effects: Vec<_> =
                input(&instances).into_iter().flat_map(|input| machine.step(input)).collect();
            assert_eq!(words(effects), *expected, "{phase}, {name}");
        }
    }

    #[test]
    fn without_requirements_a_plugin_is_set_up_at_once_and_failures_wait_for_a_reload() {
        let mut machine = Machine::new("p", Vec::new());
        assert_eq!(words(machine.step(Input::Services(vec![]))), "settingup setup1");
        let outcome = Err(failure());
        assert_eq!(
            words(machine.step(Input::SetUp { attempt: 1, outcome })),
            "unwind failed(NO) NO"
        );
        assert_eq!(words(machine.step(Input::Services(vec![]))), "");
        assert_eq!(words(machine.step(Input::Reload(vec![]))), "settingup setup2");
    }

    #[test]
    fn a_scope_is_never_opened_twice_nor_left_open() {
        // Every sequence of five inputs, checked against one flag: is a scope open?
        let instances = instances(2);
        let input = |number: usize, attempt: u64| match number {
            0 => Input::Services(vec![None]),
            1 => Input::Services(vec![instances[0]]),
            2 => Input::Services(vec![instances[1]]),
            3 => Input::Reload(vec![instances[0]]),
            4 => Input::Stop,
            5 => Input::SetUp { attempt, outcome: Ok(()) },
            6 => Input::SetUp { attempt, outcome: Err(failure()) },
            _ => Input::SetUp { attempt: attempt.wrapping_sub(1), outcome: Ok(()) },
        };
        for sequence in 0..8_usize.pow(5) {
            let mut machine = Machine::new("p", vec!["a"]);
            let (mut open, mut attempt) = (false, 0);
            for step in 0..5 {
                let number = sequence / 8_usize.pow(step) % 8;
                for effect in machine.step(input(number, attempt)) {
                    match effect {
                        Effect::SetUp { attempt: next } => {
                            assert!(!open && next > attempt, "{sequence:o}");
                            (open, attempt) = (true, next);
                        }
                        Effect::Unwind => {
                            assert!(open, "{sequence:o}");
                            open = false;
                        }
                        Effect::Report(status) => {
                            let up = matches!(status, PluginStatus::Active);
                            assert!(!up || open, "{sequence:o}");
                        }
                        Effect::AnswerReloads(_) => {}
                    }
                }
                let lives = matches!(machine.phase, Phase::SettingUp { .. } | Phase::Active { .. });
                assert_eq!(open, lives, "{sequence:o}");
            }
        }
    }
}
