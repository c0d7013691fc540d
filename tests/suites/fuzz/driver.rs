//! Seeded fuzzing under a stable compiler: valid inputs and those that once found something, mutated.
//!
//! It sees nothing of what an input reaches, so it is no substitute for a fuzzer that does (`fuzz/README.md`); it runs
//! everywhere, and again with the same seed it does the same.

use std::env;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use telemetry_proto::fuzzing::Target;
use telemetry_rig::suite::TestResult;

/// How long each target is fuzzed, in seconds; 2 by default.
const SECONDS: &str = "TELEMETRY_FUZZ_SECONDS";
/// The seed, to do again what was done; a new one each time by default, which is printed.
const SEED: &str = "TELEMETRY_FUZZ_SEED";

/// No input is longer.
const MAX_BYTES: usize = 64 * 1024;
/// No input is mutated more often at once.
const MAX_MUTATIONS: usize = 8;
/// Lengths and numbers at whose edges things go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x3f,
    0x40,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];

/// Every target of this project.
pub(crate) fn targets() -> impl Iterator<Item = &'static Target> {
    [
        telemetry_proto::fuzzing::TARGETS,
        telemetry_h3::fuzzing::TARGETS,
        telemetry_certs::fuzzing::TARGETS,
        telemetry_relay::fuzzing::TARGETS,
        telemetry_runner_client::fuzzing::TARGETS,
    ]
    .into_iter()
    .flatten()
}

/// Where the inputs are kept that once found something.
fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target.name)
}

/// Fuzzes a target as the environment says.
///
/// # Errors
/// The input that breaks a promise: where it was written, and what the seed was.
pub(crate) fn run(target: &Target) -> TestResult {
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let seed = env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let kept = kept(&corpus(target))?;
    let seeds = [(target.seeds)(), kept.clone()].concat();
    if seeds.is_empty() {
        return Err(format!("{} has no valid input to begin with", target.name).into());
    }
    let ends = Instant::now() + Duration::from_secs_f64(seconds);
    let mut tried = 0_u64;
    let untouched = seeds.iter().map(|seed| (seed.clone(), "a seed".to_owned()));
    let mutated = (0_u64..).map(|number| {
        let mut rng = Rng::with_seed(seed.wrapping_add(number));
        (mutate(target, &seeds, &mut rng), format!("{SEED}={seed}, input {number}"))
    });
    for (input, origin) in untouched.chain(mutated) {
        if tried >= seeds.len() as u64 && Instant::now() >= ends {
            break;
        }
        tried += 1;
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            let file = env::temp_dir().join(format!("telemetry-fuzz-{}-{seed}", target.name));
            fs::write(&file, &input)?;
            return Err(format!(
                "{}: a promise is broken by {origin}; the input is in {}. Keep it in fuzz/corpus/{}, unless it holds a key",
                target.name,
                file.display(),
                target.name
            )
            .into());
        }
    }
    println!("{}: {tried} inputs, {} of them kept ones, {SEED}={seed}", target.name, kept.len());
    Ok(())
}

/// The inputs in a folder, in the order of their names. No folder is an empty one.
fn kept(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    files.into_iter().map(fs::read).collect()
}

/// An input made of valid ones.
fn mutate(target: &Target, seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = seeds[rng.usize(..seeds.len())].clone();
    for _ in 0..rng.usize(1..=MAX_MUTATIONS) {
        let at = rng.usize(..=input.len());
        match rng.u8(..10) {
            0 => flip(&mut input, rng),
            1 => replace(&mut input, at, 1, &[rng.u8(..)]),
            2 => drop(input.splice(at..at, word(target, rng))),
            3 => {
                let word: Vec<u8> = word(target, rng).collect();
                replace(&mut input, at, word.len(), &word);
            }
            4 => {
                let number = number(rng);
                replace(&mut input, at, if rng.bool() { number.len() } else { 1 }, &number);
            }
            5 => {
                let piece = piece(&input, rng).to_vec();
                input.splice(at..at, piece);
            }
            6 => {
                let len = rng.usize(..=(input.len() - at).min(16));
                input.drain(at..at + len);
            }
            7 => {
                let other = piece(&seeds[rng.usize(..seeds.len())], rng);
                replace(&mut input, at, if rng.bool() { other.len() } else { 0 }, other);
            }
            8 => input.truncate(at),
            _ => {
                let piece = piece(&input, rng).to_vec();
                let times = rng.usize(1..64);
                input.splice(at..at, piece.repeat(times));
            }
        }
        input.truncate(MAX_BYTES);
    }
    input
}

fn flip(input: &mut [u8], rng: &mut Rng) {
    if !input.is_empty() {
        input[rng.usize(..input.len())] ^= 1 << rng.u8(..8);
    }
}

/// Puts `new` in the place of `len` bytes.
fn replace(input: &mut Vec<u8>, at: usize, len: usize, new: &[u8]) {
    let end = input.len().min(at + len);
    input.splice(at..end, new.iter().copied());
}

fn word(target: &Target, rng: &mut Rng) -> impl Iterator<Item = u8> {
    target.words[rng.usize(..target.words.len())].bytes()
}

/// A number as any of the formats write one.
fn number(rng: &mut Rng) -> Vec<u8> {
    let number = if rng.bool() { EDGES[rng.usize(..EDGES.len())] } else { rng.u64(..) >> rng.u32(..64) };
    match rng.u8(..5) {
        0 => number.to_string().into_bytes(),
        1 => number.to_le_bytes()[..1 << rng.u32(..4)].to_vec(),
        2 => number.to_be_bytes()[8 - (1 << rng.u32(..4))..].to_vec(),
        3 => quic_varint(number),
        _ => protobuf_varint(number),
    }
}

/// RFC 9000 section 16, in as few bytes as it takes.
fn quic_varint(number: u64) -> Vec<u8> {
    let number = number & (u64::MAX >> 2);
    let bytes = number.to_be_bytes();
    let (len, prefix) = match number {
        0..0x40 => (1, 0),
        0x40..0x4000 => (2, 0x40),
        0x4000..0x4000_0000 => (4, 0x80),
        _ => (8, 0xc0),
    };
    let mut out = bytes[8 - len..].to_vec();
    out[0] |= prefix;
    out
}

fn protobuf_varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
    out
}

fn piece<'i>(input: &'i [u8], rng: &mut Rng) -> &'i [u8] {
    let from = rng.usize(..=input.len());
    let len = rng.usize(..=(input.len() - from).min(64));
    &input[from..from + len]
}
