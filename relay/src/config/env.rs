//! Overrides from the environment.

use toml::{Table, Value};

use super::{ConfigFault, ConfigFaults};

/// What every override starts with: `TELEMETRY_RELAY__SECTION__KEY=VALUE`.
const PREFIX: &str = "TELEMETRY_RELAY__";

/// Where environment variables come from; a trait, so that parsing can be tested.
pub trait EnvSource {
    /// All variables, as name and value. Those that are no Unicode may be left out.
    fn vars(&self) -> Vec<(String, String)>;
}

/// The environment of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnv;

impl EnvSource for ProcessEnv {
    fn vars(&self) -> Vec<(String, String)> {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }
}

impl<const N: usize> EnvSource for [(&str, &str); N] {
    fn vars(&self) -> Vec<(String, String)> {
        self.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

/// Puts every override into `table`. A value is read as TOML where it is one, else as a string: `8` is a number, `a.pem` a
/// string, `["a", "b"]` a list.
pub(super) fn apply(table: &mut Table, env: &dyn EnvSource, faults: &mut ConfigFaults) {
    let mut vars = env.vars();
    vars.sort();
    for (name, value) in vars {
        let Some(path) = name.strip_prefix(PREFIX) else { continue };
        let keys: Vec<String> = path.split("__").map(str::to_ascii_lowercase).collect();
        if set(table, &keys, read_value(&value)).is_none() {
            faults.push(ConfigFault::new(&name, "names no key", format!("write it as {PREFIX}SECTION__KEY")));
        }
    }
}

fn read_value(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.to_owned()))
}

fn set(table: &mut Table, keys: &[String], value: Value) -> Option<()> {
    let (last, sections) = keys.split_last()?;
    if keys.iter().any(String::is_empty) {
        return None;
    }
    let mut table = table;
    for section in sections {
        table = table.entry(section.clone()).or_insert_with(|| Value::Table(Table::new())).as_table_mut()?;
    }
    table.insert(last.clone(), value);
    Some(())
}
