//! Floods of tokens, each another one, none good for who shows it.
//!
//! In a run of every day they are short. With [`COUNT`] set, as by `telemetry-report`, they are as long as it says, or as
//! many tokens as half a minute has room for.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fmt, iter};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::{Either, select, try_join_all};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use libtest_mimic::Failed;
use telemetry_proto::{Reason, Signal};
use telemetry_relay::gate::SignatureAlgorithm;
use telemetry_relay::issuer::SigningKey;
use telemetry_rig::http::HttpClient;
use telemetry_rig::net::free_address;
use telemetry_rig::outcome;
use telemetry_rig::raw::RawClient;
use telemetry_rig::rig::{Rig, RigRelay};
use telemetry_rig::suite::{Suite, TestResult};
use tokio::time::{MissedTickBehavior, interval};

use crate::NEEDS;
use crate::arena::{ATTACKER, LINE, against, in_process, serves_honest_runners_within};
use crate::forge::{claims, header, nothing_was_stored_but_of_honest_runners, with};

/// The variable that says how many tokens a flood against the relay's program has.
const COUNT: &str = "TELEMETRY_ATTACKS_TOKENS";
/// A flood has no fewer, on any machine.
const FEWEST: usize = 10_000;
/// Of a relay in the test's process, what is counted is looked at, not what it bears.
const IN_PROCESS: usize = 1_000;
/// Leaves time for the rest of the test within its own.
const LASTS: Duration = Duration::from_secs(36);
const CONNECTIONS: usize = 4;
const AT_A_TIME_ON_EACH: usize = 32;
/// The flood has the whole machine, this process included, and others may have it too. After it, the arena's limit holds.
const SERVED_WITHIN: Duration = Duration::from_secs(15);
/// How often an honest runner comes while the flood lasts.
const HONEST_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .expecting(
            "tokens: a_flood_of_invalid_ones",
            "each refused with its reason and counted; none is remembered but the valid ones of other runners; meanwhile an honest runner is served",
            NEEDS,
            || flood(INVALID),
        )
        .expecting(
            "tokens: a_flood_of_valid_ones",
            "each refused and counted: token-runner-mismatch; what is remembered is bounded; meanwhile an honest runner is served",
            NEEDS,
            || flood(&[OF_ANOTHER_RUNNER]),
        )
}

/// Tokens of a kind, by number.
struct Kind {
    reason: Reason,
    token: fn(&Mint, usize) -> String,
}

const OF_ANOTHER_RUNNER: Kind =
    Kind { reason: Reason::TokenRunnerMismatch, token: |mint, n| mint.sign(&mint.issuer, &mint.of_another, n) };

const INVALID: &[Kind] = &[
    Kind { reason: Reason::TokenBadSignature, token: |mint, n| mint.with_any_signature(&mint.header, n) },
    Kind { reason: Reason::TokenBadSignature, token: |mint, n| mint.with_any_signature(&mint.rs256, n) },
    Kind { reason: Reason::TokenBadSignature, token: Mint::changed },
    Kind { reason: Reason::TokenBadSignature, token: Mint::hs256 },
    Kind { reason: Reason::TokenBadSignature, token: |mint, n| mint.sign(&mint.own, &mint.claims, n) },
    Kind { reason: Reason::TokenUnknownKey, token: Mint::of_a_key_of_nobody },
    Kind { reason: Reason::TokenMalformed, token: |mint, n| mint.message(&mint.none, &mint.claims, n) + "." },
    Kind { reason: Reason::TokenMalformed, token: |_, n| format!("{}.{n}.{n}", encode(n.to_string().repeat(30))) },
    Kind { reason: Reason::TokenMalformed, token: |mint, n| format!("{}.{}.{n}", mint.signed, mint.signature) },
    Kind { reason: Reason::TokenExpired, token: |mint, n| mint.sign(&mint.issuer, &mint.expired, n) },
    Kind { reason: Reason::TokenWrongAudience, token: |mint, n| mint.sign(&mint.issuer, &mint.for_others, n) },
    OF_ANOTHER_RUNNER,
];

/// What is dear to make, made once.
struct Mint {
    issuer: EncodingKey,
    own: EncodingKey,
    jwks: EncodingKey,
    /// Headers as they are sent.
    header: String,
    rs256: String,
    none: String,
    /// Claims as JSON.
    claims: String,
    expired: String,
    for_others: String,
    of_another: String,
    header_text: String,
    /// The parts of a good token.
    signed: String,
    signature: String,
}

impl Mint {
    fn new(rig: &Rig) -> Result<Self, Box<dyn std::error::Error>> {
        let own = SigningKey::generate(SignatureAlgorithm::EdDsa)?;
        let key =
            |key: &SigningKey| Ok::<_, Box<dyn std::error::Error>>(EncodingKey::from_ed_pem(key.to_pem()?.as_bytes())?);
        let good = rig.token(ATTACKER);
        let (signed, signature) = good.rsplit_once('.').ok_or("a token without a signature")?;
        let (header_text, claims) = (header(rig), claims(rig));
        Ok(Self {
            issuer: key(rig.signing_key())?,
            own: key(&own)?,
            jwks: EncodingKey::from_secret(rig.issuer().public_keys().to_jwks().as_bytes())?,
            header: encode(&header_text),
            rs256: encode(with(&header_text, "alg", "\"RS256\"")),
            none: encode(with(&header_text, "alg", "\"none\"")),
            expired: with(&claims, "exp", "1000000000"),
            for_others: with(&claims, "aud", "[\"others\"]"),
            of_another: with(&claims, "runner_id", "\"r2\""),
            claims,
            header_text,
            signed: signed.to_owned(),
            signature: signature.to_owned(),
        })
    }

    /// The two parts that are signed, unlike those of any other number.
    fn message(&self, header: &str, claims: &str, number: usize) -> String {
        format!("{header}.{}", encode(with_number(claims, "jti", number)))
    }

    fn sign(&self, key: &EncodingKey, claims: &str, number: usize) -> String {
        signed_with(self.message(&self.header, claims, number), key, Algorithm::EdDSA)
    }

    fn with_any_signature(&self, header: &str, number: usize) -> String {
        let signature = [number.to_le_bytes(); 8].concat();
        format!("{}.{}", self.message(header, &self.claims, number), encode(signature))
    }

    /// Other claims below a good signature.
    fn changed(&self, number: usize) -> String {
        format!("{}.{}", self.message(&self.header, &self.claims, number), self.signature)
    }

    /// The public keys are known to everyone, and might serve as a secret.
    fn hs256(&self, number: usize) -> String {
        signed_with(self.message(&self.header, &self.claims, number), &self.jwks, Algorithm::HS256)
    }

    fn of_a_key_of_nobody(&self, number: usize) -> String {
        let header = with(&self.header_text, "kid", &format!("\"nobody-{number}\""));
        format!("{}.{}", self.message(&encode(header), &self.claims, number), self.signature)
    }
}

fn encode(part: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(part)
}

fn with_number(object: &str, name: &str, number: usize) -> String {
    format!("{},\"{name}\":\"{number}\"}}", object.trim_end_matches('}'))
}

fn signed_with(message: String, key: &EncodingKey, algorithm: Algorithm) -> String {
    let signature = crypto::sign(message.as_bytes(), key, algorithm).unwrap_or_default();
    message + "." + &signature
}

async fn flood(kinds: &'static [Kind]) -> TestResult {
    let count = env::var(COUNT).ok().and_then(|count| count.parse().ok()).unwrap_or(FEWEST);
    let admin = free_address()?;
    let settings = format!("[admin]\naddress = \"{admin}\"\n");
    // What a relay logs of each packet at the lowest level would fill the disk.
    let rig = Rig::builder().runners(2).tcp().relay_program(&settings).log_levels("info").start().await?;
    let at_the_program = async |rig: &Rig| {
        let flood = show_tokens(rig, kinds, count).await?;
        assert!(flood.sent >= count.min(FEWEST), "{flood}");
        let (_, page) = HttpClient::new(admin).get("/metrics").await?;
        flood.compare(|reason| refused(&String::from_utf8_lossy(&page), reason))?;
        outcome::saw(flood.to_string());
        Ok(())
    };
    Box::pin(against(&rig, &at_the_program)).await?;
    drop(rig);

    let in_this_process = async |rig: &Rig| {
        let flood = show_tokens(rig, kinds, IN_PROCESS).await?;
        let RigRelay::InProcess(relay) = rig.relay() else { return Err("the relay is elsewhere".into()) };
        let service = relay.service().ok_or("the relay is gone")?;
        flood.compare(|reason| service.metrics().refused(reason))?;
        // And those of the honest runner: two for each time that it came, and for the last, which the end may have broken off.
        let good = flood.refused.get(&Reason::TokenRunnerMismatch).copied().unwrap_or(0);
        let cached = rig.verifier().cached() as u64;
        assert!(cached <= good + 2 * (flood.honest.served + 1), "{cached} tokens are remembered after {flood}");
        Ok(())
    };
    Box::pin(in_process(&in_this_process)).await
}

/// What came of a flood.
struct Flood {
    sent: usize,
    refused: BTreeMap<Reason, u64>,
    lasted: Duration,
    honest: Honest,
}

/// What an honest runner noticed of it.
#[derive(Default)]
struct Honest {
    served: u64,
    slowest: Duration,
}

impl Flood {
    /// The relay has counted exactly what was refused.
    fn compare(&self, counted: impl Fn(Reason) -> u64) -> Result<(), String> {
        for (reason, seen) in &self.refused {
            let counted = counted(*reason);
            if counted != *seen {
                return Err(format!("{seen} were refused as {reason}, and {counted} counted"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused: Vec<_> = self.refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        write!(
            f,
            "{} different ones in {:.1} s over {CONNECTIONS} connections, refused and counted: {}; an honest runner came {} times \
             meanwhile, over QUIC and TCP, and was served within {} ms",
            self.sent,
            self.lasted.as_secs_f64(),
            refused.join(", "),
            self.honest.served,
            self.honest.slowest.as_millis(),
        )
    }
}

/// Shows so many tokens, or as many as time allows, while an honest runner comes again and again.
async fn show_tokens(rig: &Rig, kinds: &[Kind], count: usize) -> Result<Flood, Failed> {
    let mint = Mint::new(rig)?;
    let clients = try_join_all((0..CONNECTIONS).map(|_| rig.raw_client(ATTACKER))).await?;
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let flooding =
        try_join_all(clients.iter().map(|client| show_over(client, &mint, kinds, &next, count, began + LASTS)));
    let mut honest = Honest::default();
    let refused = {
        let coming = pin!(come_again(rig, &mut honest));
        match select(pin!(flooding), coming).await {
            Either::Left((refused, _)) => refused?,
            Either::Right((Err(error), _)) => return Err(error),
            Either::Right((Ok(never), _)) => match never {},
        }
    };
    let lasted = began.elapsed();
    nothing_was_stored_but_of_honest_runners(rig)?;
    let mut sum = BTreeMap::new();
    for (reason, count) in refused.into_iter().flatten() {
        *sum.entry(reason).or_default() += count;
    }
    let sent = usize::try_from(sum.values().sum::<u64>())?;
    Ok(Flood { sent, refused: sum, lasted, honest })
}

/// Shows tokens over one connection, and counts what they are refused for.
async fn show_over(
    client: &RawClient,
    mint: &Mint,
    kinds: &[Kind],
    next: &AtomicUsize,
    count: usize,
    deadline: Instant,
) -> Result<BTreeMap<Reason, u64>, Failed> {
    let numbers = iter::from_fn(|| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        (number < count && Instant::now() < deadline).then_some(number)
    });
    let shown = stream::iter(numbers).map(async |number| {
        let Kind { reason, token } = &kinds[number % kinds.len()];
        let answer = client.write(Signal::Metrics).token(&token(mint, number)).body(LINE).send().await?;
        answer.expect_refusal(*reason)?;
        Ok::<_, Failed>(*reason)
    });
    shown
        .buffer_unordered(AT_A_TIME_ON_EACH)
        .try_fold(BTreeMap::new(), async |mut refused, reason| {
            *refused.entry(reason).or_default() += 1;
            Ok(refused)
        })
        .await
}

/// An honest runner connects, writes and leaves, until it is not served.
async fn come_again(rig: &Rig, honest: &mut Honest) -> Result<Infallible, Failed> {
    let mut times = interval(HONEST_EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let came = Instant::now();
        serves_honest_runners_within(rig, SERVED_WITHIN).await?;
        honest.served += 1;
        honest.slowest = honest.slowest.max(came.elapsed());
    }
}

/// What the page of metrics says about a reason, over all routes.
fn refused(page: &str, reason: Reason) -> u64 {
    let label = format!("reason=\"{reason}\"");
    let of_reason = |line: &&str| line.starts_with("telemetry_relay_requests_total{") && line.contains(&label);
    page.lines().filter(of_reason).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
