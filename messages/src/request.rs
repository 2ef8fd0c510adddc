//! What a request logs before it is sent: header, developer message, context.

use std::{collections::HashSet, sync::Arc};

use crate::{
    chunk::Failure,
    config::{
        AdapterDefaults, CallConfig, Header, HeaderReason, ModelChoice, RequestContext, ToolList,
    },
    content::ContentBlock,
    history::History,
    prepared::Prepared,
    tool_history::ToolHistorySnapshot,
};

/// A request as it goes to the provider: rebuilt from the log, and never changed.
#[derive(Debug, Clone)]
pub struct FrozenRequest {
    /// Config, markers and tools as the header logs them.
    pub header: Arc<Header>,
    /// The derived conversation.
    pub messages: History,
    /// How the tool set came to be, for the route's declarations.
    pub tool_history: Option<ToolHistorySnapshot>,
}

/// The configuration that hooks start from (core specification 4.6, newest generation).
///
/// Later requests of an agent instance start from the last header without its adapter defaults, so
/// that those are resolved anew for each route; provider, model and effort are the captured choice.
pub fn seed_config(
    last: Option<&Header>,
    first_of_instance: bool,
    choice: &ModelChoice,
    max_tokens: Option<u64>,
) -> CallConfig {
    let mut config = match last {
        Some(header) if !first_of_instance => {
            let mut config = header.config.clone();
            if header.adapter_defaults.max_tokens {
                config.max_tokens = None;
            }
            config
        }
        _ => CallConfig { max_tokens, ..CallConfig::default() },
    };
    config.provider.clone_from(&choice.provider);
    config.model.clone_from(&choice.model);
    config.reasoning_effort.clone_from(&choice.reasoning_effort);
    config
}

/// A request hook may change sampling, limit and stop sequences, and nothing that the captured
/// choice decides.
pub fn check_proposal(choice: &ModelChoice, proposed: &CallConfig) -> Result<(), Failure> {
    let same = proposed.provider == choice.provider
        && proposed.model == choice.model
        && proposed.reasoning_effort == choice.reasoning_effort;
    if same {
        return Ok(());
    }
    Err(Failure::unknown(format!(
        "a request hook changed the model from `{}/{}` to `{}/{}` (effort {:?} to {:?}): record a \
         model selection instead, which takes effect at the next step",
        choice.provider,
        choice.model,
        proposed.provider,
        proposed.model,
        choice.reasoning_effort,
        proposed.reasoning_effort,
    )))
}

/// The canonical header of a request.
pub fn header_of(prepared: &Prepared, tools: &ToolList) -> Header {
    let config = prepared.config.clone();
    let marked = prepared.adapter_defaults;
    let adapter_defaults = AdapterDefaults {
        reasoning_effort: marked.reasoning_effort && config.reasoning_effort.is_some(),
        max_tokens: marked.max_tokens && config.max_tokens.is_some(),
    };
    Header { config, adapter_defaults, tools: tools.clone() }
}

/// Whether a header must be logged, why, and whether it carries the series mark (4.9.2).
pub fn decide_header(
    logged_by_instance: bool,
    baseline: Option<&Header>,
    new: &Header,
    series: bool,
) -> Option<(HeaderReason, bool)> {
    match (logged_by_instance, baseline) {
        (_, None) => Some((HeaderReason::Initial, series)),
        (false, Some(_)) => Some((HeaderReason::Resume, series)),
        (true, Some(old)) if old != new => Some((HeaderReason::Change, series)),
        (true, Some(_)) if series => Some((HeaderReason::Series, false)),
        (true, Some(_)) => None,
    }
}

/// The blocks of the developer message between two headers: additions in new order, then removals
/// in old order; `None` if the same names are active (4.10).
pub fn tool_changes(old: &ToolList, new: &ToolList) -> Option<Vec<ContentBlock>> {
    let names = |tools: &ToolList| -> HashSet<String> {
        tools.iter().map(|tool| tool.name.clone()).collect()
    };
    let (before, after) = (names(old), names(new));
    let added = new.iter().filter(|tool| !before.contains(&tool.name));
    let removed = old.iter().filter(|tool| !after.contains(&tool.name));
    let blocks: Vec<_> = added
        .map(|tool| ContentBlock::ToolAddition { tool_name: tool.name.clone() })
        .chain(removed.map(|tool| ContentBlock::ToolRemoval { tool_name: tool.name.clone() }))
        .collect();
    (!blocks.is_empty()).then_some(blocks)
}

/// The route facts to log.
pub fn context_of(prepared: &Prepared) -> RequestContext {
    RequestContext {
        provider: prepared.config.provider.clone(),
        model: prepared.config.model.clone(),
        context_window: prepared.context_window,
        system_prompt_update: prepared.system_prompt_update,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::ToolSchema;

    fn header(tools: &[&str], temperature: Option<f64>) -> Header {
        let tools = tools.iter().map(|name| {
            Arc::new(ToolSchema {
                name: (*name).to_owned(),
                description: String::new(),
                parameters: json!({"type": "object"}),
                defer_loading: false,
            })
        });
        let config = CallConfig { temperature, ..CallConfig::default() };
        Header { config, adapter_defaults: AdapterDefaults::default(), tools: tools.collect() }
    }

    mod scenario {
        use super::*;

        #[test]
        fn core_4_9_2_the_header_table() {
            use HeaderReason::*;
            let (a, b) = (header(&["x"], None), header(&["x"], Some(0.5)));
            for (logged, baseline, new, series, expected) in [
                (false, None, &a, false, Some((Initial, false))),
                (false, None, &a, true, Some((Initial, true))),
                (false, Some(&a), &a, false, Some((Resume, false))),
                (false, Some(&b), &a, true, Some((Resume, true))),
                (true, Some(&b), &a, false, Some((Change, false))),
                (true, Some(&b), &a, true, Some((Change, true))),
                (true, Some(&a), &a, true, Some((Series, false))),
                (true, Some(&a), &a, false, None),
            ] {
                assert_eq!(decide_header(logged, baseline, new, series), expected);
            }
        }

        #[test]
        fn core_114_additions_come_first_and_definitions_alone_say_nothing() {
            let (old, new) = (header(&["a", "b"], None), header(&["c", "b"], None));
            let blocks = tool_changes(&old.tools, &new.tools).unwrap();
            assert_eq!(
                blocks,
                [
                    ContentBlock::ToolAddition { tool_name: "c".into() },
                    ContentBlock::ToolRemoval { tool_name: "a".into() },
                ]
            );
            assert_eq!(tool_changes(&old.tools, &old.tools), None);
        }

        #[test]
        fn core_101_a_default_limit_is_resolved_anew_and_an_explicit_one_stays() {
            let choice =
                ModelChoice { provider: "q".into(), model: "n".into(), reasoning_effort: None };
            let mut last = header(&[], None);
            last.config.max_tokens = Some(5);
            last.config.reasoning_effort = Some("high".into());
            last.adapter_defaults.max_tokens = true;
            let seed = seed_config(Some(&last), false, &choice, None);
            assert_eq!((seed.max_tokens, seed.provider.as_str()), (None, "q"));
            assert_eq!(seed.reasoning_effort, None);
            last.adapter_defaults.max_tokens = false;
            assert_eq!(seed_config(Some(&last), false, &choice, None).max_tokens, Some(5));
            assert_eq!(seed_config(Some(&last), true, &choice, Some(7)).max_tokens, Some(7));
        }

        #[test]
        fn newest_34_a_hook_may_not_change_route_or_effort() {
            let choice = ModelChoice {
                provider: "p".into(),
                model: "m".into(),
                reasoning_effort: Some("low".into()),
            };
            let seed = seed_config(None, true, &choice, None);
            assert!(check_proposal(&choice, &seed).is_ok());
            let warmer = CallConfig { temperature: Some(1.0), ..seed.clone() };
            assert!(check_proposal(&choice, &warmer).is_ok());
            for changed in [
                CallConfig { model: "n".into(), ..seed.clone() },
                CallConfig { provider: "q".into(), ..seed.clone() },
                CallConfig { reasoning_effort: None, ..seed.clone() },
                CallConfig { reasoning_effort: Some("high".into()), ..seed.clone() },
            ] {
                assert!(check_proposal(&choice, &changed).is_err());
            }
        }
    }
}
