//! How an assembly is made from what a scope sees.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, config::ToolSchema};

use super::{
    AssembleContext, AssembleInput, AssembledContext, AssembledSection, Assembly, PromptError,
    PromptRegistry, Section, UNLISTED_TOOLS, order::sort_tools, registry::View,
};
use crate::{hook::panic_failure, scope::ScopeId};

impl PromptRegistry {
    /// Makes the prompt that `ctx.scope` sees at this moment. Every problem, of configuration too,
    /// is in the outcome: nothing is refused beforehand.
    pub fn assemble(&self, ctx: AssembleContext) -> BoxFuture<'static, Result<Assembly, Failure>> {
        let registry = self.clone();
        let cancel = ctx.cancel.clone();
        let assembling = async move { registry.assembled(ctx).await };
        async move { cancel.race(assembling).await.unwrap_or_else(|| Err(aborted())) }.boxed()
    }

    /// The same assembly with runtime facts as they are now: evaluated again, with the variables
    /// that they had. What a listener of [`PromptRegistry::on_assemble`] said of a fact (its text,
    /// that it is gone, that there is one more) stays said.
    pub fn refresh_contexts(
        &self,
        ctx: AssembleContext,
        assembly: &Assembly,
    ) -> BoxFuture<'static, Result<Assembly, Failure>> {
        let registry = self.clone();
        let mut assembly = assembly.clone();
        let cancel = ctx.cancel.clone();
        let refreshing = async move {
            let view = registry.view(&ctx.scope);
            let fresh = view.contexts(&ctx).await?;
            assembly.contexts = match view.suppressed {
                true => Vec::new(),
                false => merge(&assembly.evaluated, &assembly.contexts, &fresh),
            };
            assembly.evaluated = fresh.into();
            Ok(assembly)
        };
        async move { cancel.race(refreshing).await.unwrap_or_else(|| Err(aborted())) }.boxed()
    }

    async fn assembled(&self, ctx: AssembleContext) -> Result<Assembly, Failure> {
        let view = self.view(&ctx.scope);
        let variables = view.variables(&ctx).await?;
        let mut tools = view.tools(&ctx)?;
        let complete = view.complete()?;
        sort_tools(&mut tools.schemas, &tools.known, view.order.as_deref())?;
        // Beside a complete section nothing is kept, so nothing else is computed.
        let sections = match &complete {
            Some(complete) => std::slice::from_ref(complete),
            None => &view.sections[..],
        };
        let mut assembled = Vec::with_capacity(sections.len());
        for section in sections {
            let text = section.text.evaluate(&ctx, "prompt section", &section.name).await?;
            assembled.push(AssembledSection {
                name: section.name.clone(),
                order: section.order,
                text: text.unwrap_or_default(),
            });
        }
        let contexts = view.contexts(&ctx).await?;
        let kept = complete.is_some().then(|| assembled.clone());
        let evaluated: Arc<[AssembledContext]> = contexts.clone().into();
        let assembly = Assembly {
            sections: assembled,
            contexts,
            tools: tools.schemas,
            variables,
            evaluated: evaluated.clone(),
        };
        let scope = ctx.scope.clone();
        let base = |input: AssembleInput| async move { Ok(input.assembly) };
        let input = AssembleInput { ctx, assembly };
        let mut assembly = self.on_assemble().run(&scope, input, base).await?;
        if let Some(kept) = kept {
            assembly.sections = kept;
        }
        if view.suppressed {
            assembly.contexts.clear();
        }
        // A listener may have made its own value.
        assembly.evaluated = evaluated;
        Ok(assembly)
    }
}

struct Tools {
    schemas: Vec<Arc<ToolSchema>>,
    known: Vec<String>,
}

impl View {
    async fn variables(
        &self,
        ctx: &AssembleContext,
    ) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let mut variables = BTreeMap::from([
            ("provider".to_owned(), Some(ctx.choice.provider.clone())),
            ("model".to_owned(), Some(ctx.choice.model.clone())),
        ]);
        for (name, text) in &self.variables {
            let value = text.evaluate(ctx, "prompt variable", name).await?;
            variables.insert(name.clone(), value);
        }
        Ok(variables)
    }

    async fn contexts(&self, ctx: &AssembleContext) -> Result<Vec<AssembledContext>, Failure> {
        let mut assembled = Vec::new();
        if !self.suppressed {
            for context in &self.contexts {
                let text = context.text.evaluate(ctx, "runtime context", &context.name).await?;
                let text = text.unwrap_or_default();
                assembled.push(AssembledContext { name: context.name.clone(), text });
            }
        }
        Ok(assembled)
    }

    fn tools(&self, ctx: &AssembleContext) -> Result<Tools, Failure> {
        let mut tools: Vec<(ScopeId, Arc<ToolSchema>)> = Vec::new();
        let mut known = Vec::new();
        for (layer, provider) in &self.tools {
            let offer = std::panic::catch_unwind(AssertUnwindSafe(|| provider(ctx)));
            let offer = offer.map_err(|panic| panic_failure(&*panic))?;
            known.extend(offer.known);
            for schema in offer.schemas {
                if schema.name == UNLISTED_TOOLS {
                    return Err(PromptError::ReservedTool.into());
                }
                match tools.iter_mut().find(|(_, tool)| tool.name == schema.name) {
                    Some((same, _)) if same == layer => {
                        return Err(PromptError::ToolTwice { name: schema.name.clone() }.into());
                    }
                    Some(farther) => *farther = (*layer, schema),
                    None => tools.push((*layer, schema)),
                }
            }
        }
        let schemas: Vec<_> = tools.into_iter().map(|(_, tool)| tool).collect();
        known.extend(schemas.iter().map(|tool| tool.name.clone()));
        known.sort();
        known.dedup();
        Ok(Tools { schemas, known })
    }

    fn complete(&self) -> Result<Option<Arc<Section>>, PromptError> {
        let complete: Vec<_> = self.sections.iter().filter(|section| section.complete).collect();
        match &complete[..] {
            [] => Ok(None),
            [one] => Ok(Some(Arc::clone(one))),
            _ => Err(PromptError::TwoComplete {
                names: complete.iter().map(|section| section.name.clone()).collect(),
            }),
        }
    }
}

/// Fresh facts, except where a listener had its say between `given` and `kept`.
fn merge(
    given: &[AssembledContext],
    kept: &[AssembledContext],
    fresh: &[AssembledContext],
) -> Vec<AssembledContext> {
    let find = |list: &[AssembledContext], name: &str| {
        list.iter().find(|context| context.name == name).cloned()
    };
    let refreshed = fresh.iter().filter_map(|context| {
        match (find(given, &context.name), find(kept, &context.name)) {
            (Some(_), None) => None,
            (given, Some(kept)) if given.as_ref() != Some(&kept) => Some(kept),
            _ => Some(context.clone()),
        }
    });
    let is_listeners = |context: &&AssembledContext| {
        let given = find(given, &context.name);
        find(fresh, &context.name).is_none() && given.as_ref() != Some(*context)
    };
    refreshed.chain(kept.iter().filter(is_listeners).cloned()).collect()
}

fn aborted() -> Failure {
    Failure::new("ABORTED", "prompt assembly was cancelled")
}
