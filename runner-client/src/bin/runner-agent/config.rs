//! The configuration: a TOML file whose every key is documented here, flags that go before it, and validation that names
//! every fault at once.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use telemetry_certs::{CredentialFiles, Credentials, Roots};
use telemetry_runner_client::spool::{PerSignal, SpoolConfig, SyncPolicy, WhenFull};
use telemetry_runner_client::{DeadLetterConfig, TcpFallback};
use toml::{Table, Value};

use crate::cli::Options;

/// `[identity]`: who this runner is. The three files are required.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct IdentitySection {
    /// The runner's certificate chain, PEM. Read again when it changes, as are the other two.
    certificate: Option<PathBuf>,
    /// Its private key, PEM.
    key: Option<PathBuf>,
    /// The cluster's CA, PEM.
    ca: Option<PathBuf>,
    /// Have the coordinator renew the certificate at two thirds of its life, and replace both files. Default true; false where
    /// someone else renews it.
    renew: bool,
}

impl Default for IdentitySection {
    fn default() -> Self {
        Self { certificate: None, key: None, ca: None, renew: true }
    }
}

/// `[token]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TokenSection {
    /// A file with the workload token, that someone else keeps fresh. Without it the coordinator is asked for tokens.
    file: Option<PathBuf>,
}

/// `[spool]`: where batches wait on disk. Without a folder they wait in memory, and end with the agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct SpoolSection {
    /// The folder; it is created if it is missing, and belongs to one agent.
    folder: Option<PathBuf>,
    /// The most that it takes on disk, in bytes. Default 1 GiB.
    max_bytes: u64,
    /// How long a batch waits at most. Default 168.
    max_age_hours: u64,
    /// `drop-oldest`, or `refuse`: answer 429 when the spool is full. Default `drop-oldest`.
    when_full: Full,
    /// Batches are forced to the disk after as many. Default 32; 1 makes every answer wait for the disk.
    sync_every_records: u64,
    /// And after as long. Default 1000. Together they are the window of what a power loss may take.
    sync_every_ms: u64,
}

/// `tcp`, before every section: whether TCP is used where UDP does not get through. Default `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tcp {
    /// QUIC is preferred; TCP is used for as long as it does not work
    #[default]
    Auto,
    /// QUIC or nothing
    Off,
}

impl Tcp {
    pub(crate) fn fallback(self) -> Option<TcpFallback> {
        match self {
            Self::Auto => Some(TcpFallback::default()),
            Self::Off => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Full {
    DropOldest,
    Refuse,
}

impl Default for SpoolSection {
    fn default() -> Self {
        Self {
            folder: None,
            max_bytes: 1 << 30,
            max_age_hours: 7 * 24,
            when_full: Full::DropOldest,
            sync_every_records: 32,
            sync_every_ms: 1_000,
        }
    }
}

/// `[dead_letters]`: where batches of metrics and logs are put that the relay rejects for good. Without a folder they are
/// counted only, as spans always are.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct DeadLettersSection {
    /// The folder; it is created if it is missing. It can't be the spool's.
    folder: Option<PathBuf>,
    /// The most that it takes on disk, in bytes; the oldest go. Default 64 MiB.
    max_bytes: u64,
    /// The most files. Default 1000.
    max_files: usize,
    /// How long one is kept. Default 168.
    max_age_hours: u64,
}

impl Default for DeadLettersSection {
    fn default() -> Self {
        Self { folder: None, max_bytes: 64 << 20, max_files: 1_000, max_age_hours: 7 * 24 }
    }
}

/// `[listen]`: where programs write, and where `/metrics`, `/healthz` and `/status` are.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct ListenSection {
    /// The TCP address. Default `127.0.0.1:9466`.
    pub(crate) address: SocketAddr,
    /// Allows an address that other machines can reach. Whoever reaches it writes in this runner's name. Default false.
    pub(crate) allow_remote: bool,
    /// A Unix socket beside it. Default none.
    pub(crate) socket: Option<PathBuf>,
    /// When a write is answered: `stored` in the spool, or in `memory`. Default `stored`.
    pub(crate) answer: Answer,
    /// How long delivery may go on after SIGTERM before the rest stays in the spool. Default 5.
    pub(crate) drain_seconds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Stored,
    Memory,
}

impl Default for ListenSection {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 9466)),
            allow_remote: false,
            socket: None,
            answer: Answer::Stored,
            drain_seconds: 5,
        }
    }
}

/// What holds once everything is checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) coordinators: Vec<String>,
    pub(crate) tcp: Tcp,
    pub(crate) identity: IdentityFiles,
    pub(crate) credentials: Credentials,
    pub(crate) roots: Roots,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) spool: Option<SpoolConfig>,
    pub(crate) dead_letters: Option<DeadLetterConfig>,
    pub(crate) listen: ListenSection,
}

/// Where certificate, key and CA are.
#[derive(Debug, Clone)]
pub(crate) struct IdentityFiles {
    pub(crate) credentials: CredentialFiles,
    pub(crate) ca: PathBuf,
    /// Whether this agent renews them.
    pub(crate) renew: bool,
}

impl IdentityFiles {
    /// Reads them.
    pub(crate) fn load(&self) -> Result<(Credentials, Roots), telemetry_certs::LoadError> {
        Ok((self.credentials.load()?, Roots::from_file(&self.ca)?))
    }

    pub(crate) fn all(&self) -> Vec<PathBuf> {
        vec![self.credentials.certificate.clone(), self.credentials.key.clone(), self.ca.clone()]
    }
}

/// Every fault of a configuration: where it is, and what to do.
#[derive(Debug, Default)]
pub(crate) struct ConfigFaults(Vec<String>);

impl ConfigFaults {
    fn push(&mut self, at: impl fmt::Display, problem: impl fmt::Display) {
        self.0.push(format!("{at}: {problem}"));
    }

    fn require<T>(&mut self, value: Option<T>, key: &str, flag: &str) -> Option<T> {
        if value.is_none() {
            self.push(key, format_args!("is missing; set it in the file, or give {flag}"));
        }
        value
    }
}

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "the configuration has {n} fault{}:", if n == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
    }
}

impl std::error::Error for ConfigFaults {}

/// Sections of the file, as they are.
struct File {
    coordinators: Vec<String>,
    tcp: Tcp,
    identity: IdentitySection,
    token: TokenSection,
    spool: SpoolSection,
    dead_letters: DeadLettersSection,
    listen: ListenSection,
}

/// Reads file, flags and certificates.
pub(crate) fn load(options: &Options) -> Result<Settings, ConfigFaults> {
    let mut faults = ConfigFaults::default();
    let file = read(options, &mut faults);
    check_listen(&file.listen, &mut faults);
    if file.coordinators.is_empty() {
        faults.push("coordinators", "is empty; set it in the file, or give --coordinator");
    }
    let spool = spool(&file.spool, &mut faults);
    let dead_letters = dead_letters(&file.dead_letters, file.spool.folder.as_deref(), &mut faults);
    let certificate = faults.require(file.identity.certificate, "identity.certificate", "--certificate");
    let key = faults.require(file.identity.key, "identity.key", "--key");
    let ca = faults.require(file.identity.ca, "identity.ca", "--ca");
    let files = certificate.zip(key).map(|(certificate, key)| CredentialFiles { certificate, key });
    let credentials =
        files.as_ref().and_then(|files| files.load().map_err(|error| faults.push("[identity]", error)).ok());
    let roots = ca.as_ref().and_then(|ca| Roots::from_file(ca).map_err(|error| faults.push("identity.ca", error)).ok());
    let settings = (|| {
        Some(Settings {
            coordinators: file.coordinators,
            tcp: file.tcp,
            identity: IdentityFiles { credentials: files?, ca: ca?, renew: file.identity.renew },
            credentials: credentials?,
            roots: roots?,
            token_file: file.token.file,
            spool,
            dead_letters,
            listen: file.listen,
        })
    })();
    match settings {
        Some(settings) if faults.0.is_empty() => Ok(settings),
        _ => Err(faults),
    }
}

/// Reads where a running agent listens. Nothing else of the file needs to be sound: whoever asks for this may do so because
/// it is not.
pub(crate) fn load_listen(options: &Options) -> Result<ListenSection, ConfigFaults> {
    let mut faults = ConfigFaults::default();
    let mut table = options.config.as_deref().map(|path| table(path, &mut faults)).unwrap_or_default();
    table.retain(|name, _| name == "listen");
    let file = resolve(table, options, &mut faults);
    if faults.0.is_empty() { Ok(file.listen) } else { Err(faults) }
}

fn read(options: &Options, faults: &mut ConfigFaults) -> File {
    let table = options.config.as_deref().map(|path| table(path, faults)).unwrap_or_default();
    resolve(table, options, faults)
}

/// From the file's table to sections with whole paths, and with the flags over them.
fn resolve(mut table: Table, options: &Options, faults: &mut ConfigFaults) -> File {
    let folder = options.config.as_deref().and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
    let coordinators = match table.remove("coordinators").map(Value::try_into) {
        None => Vec::new(),
        Some(Ok(list)) => list,
        Some(Err(_)) => {
            faults.push("coordinators", "is no list of texts; write it as [\"HOST:PORT\"], before every [section]");
            Vec::new()
        }
    };
    let tcp = match table.remove("tcp").map(Value::try_into) {
        None => Tcp::default(),
        Some(Ok(tcp)) => tcp,
        Some(Err(_)) => {
            faults.push("tcp", "must be \"auto\" or \"off\"");
            Tcp::default()
        }
    };
    let mut file = File {
        coordinators,
        tcp,
        identity: section(&mut table, "identity", faults),
        token: section(&mut table, "token", faults),
        spool: section(&mut table, "spool", faults),
        dead_letters: section(&mut table, "dead_letters", faults),
        listen: section(&mut table, "listen", faults),
    };
    table.keys().for_each(|key| faults.push(key, "unknown key; remove it, or mind its spelling"));
    let paths = [
        &mut file.identity.certificate,
        &mut file.identity.key,
        &mut file.identity.ca,
        &mut file.token.file,
        &mut file.spool.folder,
        &mut file.dead_letters.folder,
        &mut file.listen.socket,
    ];
    for path in paths.into_iter().flatten() {
        *path = folder.join(&path);
    }
    override_with(&mut file, options);
    file
}

fn table(path: &Path, faults: &mut ConfigFaults) -> Table {
    let text = std::fs::read_to_string(path).map_err(|error| faults.push(path.display(), error)).unwrap_or_default();
    toml::from_str(&text).map_err(|error| faults.push(path.display(), error.to_string().trim_end())).unwrap_or_default()
}

fn section<T: DeserializeOwned + Default>(table: &mut Table, name: &str, faults: &mut ConfigFaults) -> T {
    let Some(value) = table.remove(name) else { return T::default() };
    let mut unknown = Vec::new();
    let read = serde_ignored::deserialize(value, |path| unknown.push(path.to_string()));
    for key in unknown {
        faults.push(format_args!("{name}.{key}"), "unknown key; remove it, or mind its spelling");
    }
    read.map_err(|error: toml::de::Error| faults.push(format_args!("[{name}]"), error.to_string().trim_end()))
        .unwrap_or_default()
}

fn override_with(file: &mut File, options: &Options) {
    fn put<T: Clone>(slot: &mut Option<T>, value: &Option<T>) {
        if value.is_some() {
            slot.clone_from(value);
        }
    }
    if !options.coordinators.is_empty() {
        file.coordinators.clone_from(&options.coordinators);
    }
    file.tcp = options.tcp.unwrap_or(file.tcp);
    put(&mut file.identity.certificate, &options.certificate);
    put(&mut file.identity.key, &options.key);
    put(&mut file.identity.ca, &options.ca);
    put(&mut file.token.file, &options.token_file);
    put(&mut file.spool.folder, &options.spool);
    put(&mut file.dead_letters.folder, &options.dead_letters);
    put(&mut file.listen.socket, &options.socket);
    file.spool.max_bytes = options.spool_max_bytes.unwrap_or(file.spool.max_bytes);
    file.listen.address = options.listen.unwrap_or(file.listen.address);
}

fn check_listen(listen: &ListenSection, faults: &mut ConfigFaults) {
    if !listen.allow_remote && !listen.address.ip().is_loopback() {
        faults.push(
            "listen.address",
            format_args!(
                "{} can be reached by other machines; choose a loopback address, or set allow_remote = true",
                listen.address
            ),
        );
    }
}

fn spool(section: &SpoolSection, faults: &mut ConfigFaults) -> Option<SpoolConfig> {
    let folder = section.folder.as_ref()?;
    if section.max_bytes < 1 << 20 {
        faults.push("spool.max_bytes", "must be at least 1 MiB");
    }
    if section.max_age_hours == 0 || section.max_age_hours > 24 * 365 {
        faults.push("spool.max_age_hours", "must be 1 to 8760");
    }
    if section.sync_every_records == 0 {
        faults.push("spool.sync_every_records", "must be at least 1");
    }
    let when_full = match section.when_full {
        Full::DropOldest => WhenFull::DropOldest,
        Full::Refuse => WhenFull::Refuse,
    };
    let defaults = SpoolConfig::new(folder);
    Some(SpoolConfig {
        max_bytes: section.max_bytes,
        segment_bytes: defaults.segment_bytes.min(section.max_bytes / 16),
        max_age: Duration::from_secs(section.max_age_hours.saturating_mul(3_600)),
        sync: SyncPolicy {
            every_records: section.sync_every_records,
            every: Duration::from_millis(section.sync_every_ms),
        },
        when_full: PerSignal { metrics: when_full, logs: when_full },
        ..defaults
    })
}

fn dead_letters(
    section: &DeadLettersSection,
    spool: Option<&Path>,
    faults: &mut ConfigFaults,
) -> Option<DeadLetterConfig> {
    let folder = section.folder.as_ref()?;
    if spool == Some(folder) {
        faults.push("dead_letters.folder", "is the spool's; name another one");
    }
    if section.max_bytes < 1 << 20 {
        faults.push("dead_letters.max_bytes", "must be at least 1 MiB");
    }
    if !(1..=100_000).contains(&section.max_files) {
        faults.push("dead_letters.max_files", "must be 1 to 100000");
    }
    if !(1..=24 * 365).contains(&section.max_age_hours) {
        faults.push("dead_letters.max_age_hours", "must be 1 to 8760");
    }
    Some(DeadLetterConfig {
        folder: folder.clone(),
        max_bytes: section.max_bytes,
        max_files: section.max_files,
        max_age: Duration::from_secs(section.max_age_hours.saturating_mul(3_600)),
    })
}

#[cfg(test)]
mod tests {
    use serde_aux::serde_introspection::serde_introspect;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../deploy/agent.example.toml");

    /// With every key put in that is commented out.
    fn uncommented() -> String {
        let is_key = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let line = |line: &str| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest.to_owned(),
            _ => line.to_owned(),
        };
        EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    fn sections(text: &str) -> (File, ConfigFaults) {
        let mut table: Table = text.parse().unwrap();
        let mut faults = ConfigFaults::default();
        let file = File {
            coordinators: table.remove("coordinators").unwrap().try_into().unwrap(),
            tcp: table.remove("tcp").map_or(Tcp::Off, |tcp| tcp.try_into().unwrap()),
            identity: section(&mut table, "identity", &mut faults),
            token: section(&mut table, "token", &mut faults),
            spool: section(&mut table, "spool", &mut faults),
            dead_letters: section(&mut table, "dead_letters", &mut faults),
            listen: section(&mut table, "listen", &mut faults),
        };
        assert!(table.is_empty(), "{table:?}");
        (file, faults)
    }

    #[test]
    fn the_example_is_read_as_it_is_and_with_every_key_put_in() {
        let (plain, faults) = sections(EXAMPLE);
        assert!(faults.0.is_empty() && plain.spool.folder.is_none(), "{faults}");
        let (full, mut faults) = sections(&uncommented());
        assert!(full.token.file.is_some() && spool(&full.spool, &mut faults).is_some());
        assert!(dead_letters(&full.dead_letters, None, &mut faults).is_some());
        check_listen(&full.listen, &mut faults);
        assert!(faults.0.is_empty(), "{faults}");
    }

    #[test]
    fn where_it_listens_is_read_whatever_else_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        std::fs::write(
            &path,
            "nonsense = 1\ncoordinators = 7\n[spool]\nmax_bytes = 'x'\n[listen]\nsocket = 'a.sock'\n",
        )
        .unwrap();
        let options = Options { config: Some(path), ..Options::default() };
        assert_eq!(load_listen(&options).unwrap().socket, Some(dir.path().join("a.sock")));
        assert!(load(&options).unwrap_err().0.len() >= 3);
    }

    #[test]
    fn what_the_example_shows_as_defaults_are_the_defaults() {
        let (full, _) = sections(&uncommented());
        assert_eq!(full.tcp, Tcp::default());
        let (spool, listen) = (SpoolSection::default(), ListenSection::default());
        let shown = |section: &SpoolSection| {
            let when_full = matches!(section.when_full, Full::DropOldest);
            (section.max_bytes, section.max_age_hours, when_full, section.sync_every_records, section.sync_every_ms)
        };
        assert_eq!(shown(&full.spool), shown(&spool));
        let shown = |section: &DeadLettersSection| (section.max_bytes, section.max_files, section.max_age_hours);
        assert_eq!(shown(&full.dead_letters), shown(&DeadLettersSection::default()));
        let shown =
            |section: &ListenSection| (section.address, section.allow_remote, section.answer, section.drain_seconds);
        assert_eq!(shown(&full.listen), shown(&listen));
    }

    #[test]
    fn the_example_shows_every_key_that_there_is() {
        let table: Table = uncommented().parse().unwrap();
        for (name, keys) in [
            ("identity", serde_introspect::<IdentitySection>()),
            ("token", serde_introspect::<TokenSection>()),
            ("spool", serde_introspect::<SpoolSection>()),
            ("dead_letters", serde_introspect::<DeadLettersSection>()),
            ("listen", serde_introspect::<ListenSection>()),
        ] {
            let shown = table[name].as_table().unwrap();
            assert_eq!(keys.iter().filter(|key| !shown.contains_key(**key)).collect::<Vec<_>>(), Vec::<&&str>::new());
        }
    }
}
