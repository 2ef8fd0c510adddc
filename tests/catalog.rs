//! docs/catalog.md: what the sources offer, read from the sources.
//!
//! `PLAYHOUSE_BLESS=1 cargo nextest run --all-features --test main catalog` writes the page anew.

use std::{collections::BTreeMap, fmt::Write, fs};

use quote::ToTokens;
use syn::{
    Attribute, Expr, ExprLit, Fields, ImplItem, Item, ItemImpl, ItemStruct, Lit, Meta, Visibility,
};

use crate::architecture::{is_test, root, sources};

/// The items of every source file that is not a test, by path.
type Sources = Vec<(String, Vec<Item>)>;

fn parsed() -> Sources {
    let sources = sources().filter(|(path, _)| {
        !is_test(path) && !path.starts_with("tests/") && !path.starts_with("fuzz/")
    });
    sources.map(|(path, text)| (path, syn::parse_file(&text).unwrap().items)).collect()
}

/// The rustdoc of an item as one line, up to `paragraphs`.
fn doc(attributes: &[Attribute], paragraphs: usize) -> String {
    let mut text = String::new();
    for attribute in attributes {
        let Meta::NameValue(meta) = &attribute.meta else { continue };
        let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &meta.value else { continue };
        if meta.path.is_ident("doc") {
            text += line.value().trim();
            text.push('\n');
        }
    }
    let kept: Vec<_> = text.split("\n\n").take(paragraphs).collect();
    let line = kept.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    // A link means something in rustdoc only.
    line.replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

/// A type or signature as source text.
fn source(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let tight =
        [(" :: ", "::"), (" < ", "<"), (" > ", "> "), (" >", ">"), (" ,", ","), ("& ", "&")];
    tight.iter().fold(text, |text, (from, to)| text.replace(from, to)).trim().to_owned()
}

fn structs(items: &[Item]) -> impl Iterator<Item = &ItemStruct> {
    items.iter().filter_map(|item| match item {
        Item::Struct(found) => Some(found),
        _ => None,
    })
}

/// String constants with their documentation, by value.
fn constants(
    all: &Sources,
    accept: impl Fn(&str, &str) -> bool,
) -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::new();
    for (path, items) in all {
        for item in items {
            let Item::Const(constant) = item else { continue };
            let Expr::Lit(ExprLit { lit: Lit::Str(value), .. }) = &*constant.expr else { continue };
            if accept(&constant.ident.to_string(), &value.value()) {
                let documentation = doc(&constant.attrs, 1);
                assert!(!documentation.is_empty(), "{path}: {} needs a doc", constant.ident);
                found.insert(value.value(), (documentation, path.clone()));
            }
        }
    }
    found
}

fn events(page: &mut String, all: &Sources) {
    let text = fs::read_to_string(root().join("messages/src/event/mod.rs")).unwrap();
    let file = syn::parse_file(&text).unwrap();
    let body = file.items.iter().find_map(|item| match item {
        Item::Enum(found) if found.ident == "EventBody" => Some(found),
        _ => None,
    });
    *page += "## Events\n\nData, writers and rules of each are in [events.md](events.md).\n\n\
              | kind | data | |\n|---|---|---|\n";
    for variant in &body.unwrap().variants {
        let Fields::Unnamed(data) = &variant.fields else { continue };
        let text = doc(&variant.attrs, 1);
        let (kind, rest) = text.trim_end_matches('.').split_once(':').unwrap_or((&text, ""));
        let rest = rest.trim();
        writeln!(
            page,
            "| {} | `{}` | {rest} |",
            kind.trim_end_matches('.'),
            source(&data.unnamed[0].ty)
        )
        .unwrap();
    }
    let is_kind = |value: &str| {
        let part = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        value.contains('/') && value.split('/').all(part)
    };
    for (kind, (text, path)) in constants(all, |name, value| name != "PATH" && is_kind(value)) {
        writeln!(page, "| `{kind}` | `{path}` | {text} |").unwrap();
    }
}

fn hooks(page: &mut String, all: &Sources) {
    *page += "\n## Hook points\n\nHow listeners of each mode behave is in [hooks.md](hooks.md).\n\n\
              | point | type | |\n|---|---|---|\n";
    for (path, items) in all {
        for owner in structs(items).filter(|_| path.starts_with("plugin-api/")) {
            for field in &owner.fields {
                let kind = source(&field.ty);
                let point =
                    ["Around<", "Serial<", "Notify<"].iter().any(|mode| kind.starts_with(mode));
                if let (true, Visibility::Public(_), Some(name)) = (point, &field.vis, &field.ident)
                {
                    let text = doc(&field.attrs, 9);
                    writeln!(page, "| `{}::{name}` | `{kind}` | {text} |", owner.ident).unwrap();
                }
            }
        }
    }
}

fn services(page: &mut String, all: &Sources) {
    *page += "\n## Services\n\nWhat plugins find in `PluginContext::services`.\n\n| name | in | |\n|---|---|---|\n";
    for (name, (text, path)) in constants(all, |name, _| name.ends_with("_SERVICE")) {
        writeln!(page, "| `{name}` | `{path}` | {text} |").unwrap();
    }
}

fn config_file(page: &mut String, all: &Sources) {
    *page += "\n## The config file\n\nAn example and the rules are in [config.md](config.md).\n\n\
              | key | type | |\n|---|---|---|\n";
    let readers = all.iter().filter(|(path, _)| path.starts_with("src/cli/config"));
    for entry in readers.flat_map(|(_, items)| structs(items)) {
        let read = entry
            .attrs
            .iter()
            .any(|attribute| source(&attribute.meta).contains("deny_unknown_fields"));
        if !read {
            continue;
        }
        let camel =
            entry.attrs.iter().any(|attribute| source(&attribute.meta).contains("camelCase"));
        let table = doc(&entry.attrs, 1);
        let table = table.split(';').next().unwrap_or_default().trim_end_matches('.');
        assert!(!table.is_empty(), "{} needs a doc: which table it is", entry.ident);
        for field in &entry.fields {
            let name = field.ident.as_ref().unwrap().to_string();
            let name = if camel { camel_case(&name) } else { name };
            let text = doc(&field.attrs, 1);
            assert!(!text.is_empty(), "{}.{name} needs a doc", entry.ident);
            let kind = unwrapped(&source(&field.ty));
            writeln!(page, "| {table} `{name}` | `{}` | {text} |", kind).unwrap();
        }
    }
}

/// A type without what only says that it is optional, or where it stands in the file.
fn unwrapped(kind: &str) -> String {
    let inner = |wrapper: &str| kind.strip_prefix(wrapper).and_then(|kind| kind.strip_suffix('>'));
    match inner("Option<").or_else(|| inner("Spanned<")) {
        Some(inner) => unwrapped(inner.trim()),
        None => kind.replace("Spanned<String>", "String"),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

fn builders(page: &mut String, all: &Sources) {
    *page += "\n## Settings in code\n\n| method | |\n|---|---|\n";
    for (path, items) in all {
        for item in items {
            let Item::Impl(ItemImpl { self_ty, items, trait_: None, .. }) = item else { continue };
            let owner = source(self_ty);
            if !["HarnessBuilder", "AgentOptions", "NewAgent"].contains(&owner.as_str()) {
                continue;
            }
            for item in items {
                let ImplItem::Fn(method) = item else { continue };
                let consumes = method.sig.receiver().is_some_and(|it| !source(it).starts_with('&'));
                let chained = source(&method.sig.output).contains("Self");
                if matches!(method.vis, Visibility::Public(_)) && consumes && chained {
                    let arguments = method.sig.inputs.iter().skip(1).map(source);
                    let arguments = arguments.collect::<Vec<_>>().join(", ").replace(" :", ":");
                    let text = doc(&method.attrs, 1);
                    assert!(!text.is_empty(), "{path}: {} needs a doc", method.sig.ident);
                    writeln!(page, "| `{owner}::{}({arguments})` | {text} |", method.sig.ident)
                        .unwrap();
                }
            }
        }
    }
}

#[test]
fn the_catalog_says_what_the_sources_say() {
    let mut page = "# Catalog\n\nWhat there is, as the sources say it. A test writes this page and fails when it is \
                    stale: `PLAYHOUSE_BLESS=1 cargo nextest run -p playhouse --all-features catalog`.\n\n"
        .to_owned();
    let all = parsed();
    events(&mut page, &all);
    hooks(&mut page, &all);
    services(&mut page, &all);
    config_file(&mut page, &all);
    builders(&mut page, &all);
    let file = root().join("docs/catalog.md");
    if std::env::var_os("PLAYHOUSE_BLESS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    let stands = fs::read_to_string(&file).unwrap_or_default();
    for (line, (stands, due)) in stands.lines().zip(page.lines()).enumerate() {
        assert_eq!(stands, due, "docs/catalog.md:{} is stale; bless it", line + 1);
    }
    assert_eq!(stands.lines().count(), page.lines().count(), "docs/catalog.md is stale; bless it");
}
