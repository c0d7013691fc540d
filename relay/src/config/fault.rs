//! What is wrong with a configuration.

use std::fmt;
use std::path::{Path, PathBuf};

/// One fault: where it is, what it is, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The key, as `section.key`, or the file.
    pub at: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl ConfigFault {
    pub(super) fn new(at: impl fmt::Display, problem: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self { at: at.to_string(), problem: problem.to_string(), remedy: remedy.into() }
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n    {}", self.remedy) }
    }
}

/// Every fault of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFaults {
    /// The configuration's file, where it is known.
    file: Option<PathBuf>,
    faults: Vec<ConfigFault>,
}

impl ConfigFaults {
    /// Says which file's configuration it is.
    pub(super) fn of_file(self, path: &Path) -> Self {
        Self { file: Some(path.to_owned()), ..self }
    }

    pub(super) fn push(&mut self, fault: ConfigFault) {
        self.faults.push(fault);
    }

    /// Keeps the value of `result`, or its error as a fault at `at`.
    pub(super) fn take<T, E: fmt::Display>(
        &mut self,
        at: impl fmt::Display,
        remedy: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.push(ConfigFault::new(at, error, remedy))).ok()
    }

    pub(super) fn require(&mut self, holds: bool, at: &str, problem: &str, remedy: &str) {
        if !holds {
            self.push(ConfigFault::new(at, problem, remedy));
        }
    }

    /// `value` if nothing is wrong.
    pub(super) fn into_result<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.faults.is_empty() => Ok(value),
            _ => Err(self),
        }
    }

    /// The faults, in the order in which they were found.
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigFault] {
        &self.faults
    }
}

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.faults.len();
        f.write_str("the configuration ")?;
        if let Some(file) = &self.file {
            write!(f, "{} ", file.display())?;
        }
        write!(f, "has {n} fault{}:", if n == 1 { "" } else { "s" })?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
    }
}

impl std::error::Error for ConfigFaults {}
