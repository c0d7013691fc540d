//! Documents that say what is true of the code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Every test or file that the table of lessons names exists.
#[test]
fn the_tests_of_the_lessons_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut code = String::new();
    for folder in ["proto", "certs", "h3", "relay", "runner-client", "tests"] {
        sources(&root.join(folder), &mut code);
    }
    let table = fs::read_to_string(root.join("docs/lessons.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    for name in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
        let exists = if name.contains('/') {
            root.join(name).is_file()
        } else {
            code.contains(&format!("fn {name}")) || code.contains(&format!("    {name};"))
        };
        assert!(exists, "{name}");
    }
}

/// A page without its folder.
fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
}

/// Every event that operators see is in the table of events, with its level and fields, and nothing else is.
#[test]
fn the_table_of_events_lists_what_is_logged() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut code = String::new();
    for folder in ["daemon/src", "certs/src", "h3/src", "relay/src", "runner-client/src"] {
        sources(&root.join(folder), &mut code);
    }
    let mut logged = BTreeMap::new();
    for level in ["info", "warn", "error"] {
        for call in code.split(&format!("tracing::{level}!(")).skip(1) {
            let (name, fields) = event(call);
            logged.insert(name, (level.to_owned(), fields));
        }
    }
    let page = page("events.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let listed: BTreeMap<String, (String, Vec<String>)> = rows
        .map(|(name, rest)| {
            let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
            let fields = cells[1].split(", ").map(str::to_owned);
            (name.to_owned(), (cells[0].to_owned(), fields.filter(|field| !field.is_empty()).collect()))
        })
        .collect();
    let unlisted: Vec<_> = logged.iter().filter(|(name, event)| listed.get(*name) != Some(event)).collect();
    assert!(unlisted.is_empty(), "docs/events.md has these not, or otherwise: {unlisted:#?}");
    let gone: Vec<_> = listed.keys().filter(|name| !logged.contains_key(*name)).collect();
    assert!(gone.is_empty(), "nothing logs these any more: {gone:?}");
}

/// Name and fields of an event, from what follows the parenthesis that opens it.
fn event(call: &str) -> (String, Vec<String>) {
    let (mut depth, mut quoted, mut arguments) = (1, false, vec![String::new()]);
    let mut before = ' ';
    for c in call.chars() {
        match c {
            '"' if before != '\\' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ',' if depth == 1 && !quoted => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = c;
        arguments.last_mut().unwrap().push(c);
    }
    let arguments = arguments.iter().map(|argument| argument.trim()).filter(|argument| !argument.is_empty());
    let (names, fields): (Vec<_>, Vec<_>) = arguments.partition(|argument| argument.starts_with('"'));
    let field = |argument: &&str| argument.split('=').next().unwrap().trim().trim_start_matches(['%', '?']).to_owned();
    (names.concat().trim_matches('"').to_owned(), fields.iter().map(field).collect())
}
