//! Documents that say what is true of the code.

use std::collections::{BTreeMap, BTreeSet};
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
    let table = page("lessons.md");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    let missing = missing(rows.flat_map(|row| row.split('`').skip(1).step_by(2)), &[]);
    assert!(missing.is_empty(), "{missing:?}");
}

/// Every test, file or attack that stands beside a requirement exists, and each requirement has one.
#[test]
fn the_tests_of_conformance_exist() {
    let text = page("conformance.md");
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| section") && !line.starts_with("| ---"));
    let last = |row: &str| row.trim_end_matches('|').rsplit('|').next().unwrap().trim().to_owned();
    let cells: Vec<String> = rows.map(last).collect();
    assert!(cells.len() > 40 && cells.iter().all(|cell| cell.contains('`')), "a requirement without a test");
    let mut attacks = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/attacks"), &mut attacks);
    // An attack is a text in the code; that of a table has the table's name before it in reports only.
    let names: Vec<&str> = attacks.split('"').skip(1).step_by(2).flat_map(|text| text.rsplit(": ").next()).collect();
    let missing = missing(cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)), &names);
    assert!(missing.is_empty(), "{missing:?}");
}

/// Each row of the table of what is seen when traces do not work is produced by a test, and each such test has its row.
#[test]
fn each_symptom_of_traces_has_its_test() {
    let page = page("traces.md");
    let (_, table) = page.split_once("## When it does not work").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| what") && !line.starts_with("| ---"));
    let last = |row: &str| row.trim_end_matches('|').rsplit('|').next().unwrap().trim().trim_matches('`').to_owned();
    let rows: BTreeSet<String> = rows.map(last).collect();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/traces");
    let code = fs::read_to_string(suite.join("symptoms.rs")).unwrap();
    let name = |rest: &str| rest.split('(').next().unwrap().to_owned();
    let tests: BTreeSet<String> = code.split("pub(crate) async fn ").skip(1).map(name).collect();
    assert_eq!(rows, tests, "rows, and tests of symptoms.rs");
    let run = fs::read_to_string(suite.join("main.rs")).unwrap();
    let idle: Vec<_> = tests.iter().filter(|test| !run.contains(&format!("    {test};"))).collect();
    assert!(rows.len() > 10 && idle.is_empty(), "these are not run: {idle:?}");
}

/// Those of the names that are neither a file, nor a test or another function, nor among `others`.
fn missing<'n>(names: impl Iterator<Item = &'n str>, others: &[&str]) -> Vec<&'n str> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut code = String::new();
    for folder in ["proto", "certs", "h3", "relay", "runner-client", "tests"] {
        sources(&root.join(folder), &mut code);
    }
    let exists = |name: &str| {
        let is_function = || code.contains(&format!("fn {name}(")) || code.contains(&format!("    {name};"));
        if name.contains('/') { root.join(name).is_file() } else { is_function() || others.contains(&name) }
    };
    names.filter(|name| !exists(name)).collect()
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
