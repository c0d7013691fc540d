//! A harness for suites whose tests may be unavailable: a test says what it needs, and where that is not to be had it is
//! reported as ignored with the reason, never as passed. With [`REQUIRE_STORES`] set, as in CI, it fails instead.
//!
//! ```no_run
//! use telemetry_rig::suite::TestResult;
//!
//! telemetry_rig::suite! {
//!     a_promise;
//!     a_promise_about_the_real_store needs [VictoriaMetrics];
//! }
//!
//! async fn a_promise() -> TestResult {
//!     Ok(())
//! }
//!
//! async fn a_promise_about_the_real_store() -> TestResult {
//!     Ok(())
//! }
//! ```

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Builder;

use crate::outcome::{Record, document};
use crate::program::Program;

/// When this variable is `1`, a store that is not to be had is a failure, but for one that `tests/run` can't get.
pub const REQUIRE_STORES: &str = "TELEMETRY_REQUIRE_STORES";

/// The test that [`Suite::documented`] adds.
pub const DOCUMENT_TEST: &str = "docs_outcomes_md_lists_every_test";

/// How long a test may take.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Tests that run at once: each is a cluster of its own.
const PARALLEL: usize = 2;

/// How a test ends. Any error that can be displayed fails it.
pub type TestResult = Result<(), Failed>;

/// Tests that run as one program.
#[derive(Default)]
pub struct Suite {
    trials: Vec<Trial>,
    /// Names, each with what must come of it where that is data.
    listed: Vec<(String, Option<String>)>,
}

impl Suite {
    /// A suite without tests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a test.
    #[must_use]
    pub fn test<T>(self, name: &str, needs: &'static [Program], test: impl FnOnce() -> T + Send + 'static) -> Self
    where
        T: Future<Output = TestResult>,
    {
        self.add(name, None, needs, test)
    }

    /// Adds a test that must come to this, as the document of outcomes tells it.
    #[must_use]
    pub fn expecting<T>(
        self,
        name: &str,
        expected: impl Into<String>,
        needs: &'static [Program],
        test: impl FnOnce() -> T + Send + 'static,
    ) -> Self
    where
        T: Future<Output = TestResult>,
    {
        self.add(name, Some(expected.into()), needs, test)
    }

    /// The same for a test that is ignored where `possible` says why it can't be made.
    #[must_use]
    pub fn expecting_where<T>(
        self,
        name: &str,
        expected: impl Into<String>,
        possible: impl FnOnce() -> Result<(), String> + Send + 'static,
        test: impl FnOnce() -> T + Send + 'static,
    ) -> Self
    where
        T: Future<Output = TestResult>,
    {
        self.add_where(name, Some(expected.into()), || possible().map_err(Missing::Ignored), test)
    }

    fn add<T>(
        self,
        name: &str,
        expected: Option<String>,
        needs: &'static [Program],
        test: impl FnOnce() -> T + Send + 'static,
    ) -> Self
    where
        T: Future<Output = TestResult>,
    {
        let possible = || {
            available(needs).map_err(|reason| {
                let is_failure = required() && needs.iter().all(|program| program.is_obtainable());
                if is_failure { Missing::Failure(reason) } else { Missing::Ignored(reason) }
            })
        };
        self.add_where(name, expected, possible, test)
    }

    fn add_where<T>(
        mut self,
        name: &str,
        expected: Option<String>,
        possible: impl FnOnce() -> Result<(), Missing> + Send + 'static,
        test: impl FnOnce() -> T + Send + 'static,
    ) -> Self
    where
        T: Future<Output = TestResult>,
    {
        let tested = name.to_owned();
        self.listed.push((tested.clone(), expected.clone()));
        self.trials.push(Trial::ignorable_test(name, move || {
            let mut record = Record::begin(&tested, expected);
            match possible() {
                Ok(()) => run_bounded(record.run(test())).map(|()| Completion::Completed),
                Err(Missing::Failure(reason)) => Err(reason.into()),
                Err(Missing::Ignored(reason)) => {
                    record.ignore(&reason);
                    Ok(Completion::ignored_with(reason))
                }
            }
        }));
        self
    }

    /// Adds a test that `docs/outcomes.md` lists all that were added before, under this heading.
    #[must_use]
    pub fn documented(mut self, family: &'static str) -> Self {
        let listed = std::mem::take(&mut self.listed);
        self.trials.push(Trial::test(DOCUMENT_TEST, move || Ok(document::check(family, &listed)?)));
        self
    }

    /// Runs the tests that the command line asks for.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into());
        // A second suite in the same process would find it set.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
        let mut arguments = Arguments::from_args();
        arguments.test_threads.get_or_insert(PARALLEL);
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}

/// Writes `main` for a suite: the names of async functions, each with what it needs.
#[macro_export]
macro_rules! suite {
    ($($test:ident $(needs [$($need:ident),+ $(,)?])?;)+) => {
        fn main() -> ::std::process::ExitCode {
            $crate::suite::Suite::new()
                $(.test(stringify!($test), &[$($($crate::program::Program::$need),+)?], $test))+
                .run()
        }
    };
}

/// Why a test can't be made, and what that means.
enum Missing {
    Ignored(String),
    Failure(String),
}

fn available(needs: &[Program]) -> Result<(), String> {
    for program in needs {
        program.find().map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn required() -> bool {
    env::var_os(REQUIRE_STORES).is_some_and(|value| value == "1")
}

fn run_bounded(test: impl Future<Output = TestResult>) -> TestResult {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let late = |_| Err(format!("the test did not end within {TEST_TIMEOUT:?}").into());
        tokio::time::timeout(TEST_TIMEOUT, test).await.unwrap_or_else(late)
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}
