use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::sample::random_request;
use super::scramble::scramble;
use super::*;
use crate::traces::WireError;

/// Whatever goes in: if it is taken, the generated types take it too, and what comes out is what the same rules make of
/// it on them. If it is refused as malformed, they refuse it too, but for what only we refuse.
fn check(body: &[u8]) -> Result<bool, TestCaseError> {
    let theirs = ExportTraceServiceRequest::decode(body);
    let rewritten = match rewrite_bytes(body) {
        Ok(rewritten) => rewritten,
        Err(RewriteError::Malformed(fault)) => {
            prop_assert!(theirs.is_err() || fault == WireError::Group, "{fault:?}");
            return Ok(false);
        }
        Err(_) => return Ok(false),
    };
    prop_assert!(theirs.is_ok(), "the generated types refuse it: {:?}", theirs);
    let rules = TraceRules::default();
    let expected = model::apply(theirs.unwrap(), RUNNER, &|key| rules.allows(key));
    let got = ExportTraceServiceRequest::decode(rewritten.body.clone()).unwrap();
    let spans = got.resource_spans.iter().flat_map(|r| &r.scope_spans).map(|s| s.spans.len() as u64).sum::<u64>();
    prop_assert_eq!(rewritten.spans, spans);
    prop_assert_eq!(&got.encode_to_vec(), &expected.encode_to_vec());
    prop_assert!(rewritten.body.len() <= TraceLimits::default().max_rewritten_bytes(body.len()));

    let again = rewrite_bytes(&rewritten.body).unwrap();
    prop_assert_eq!(&again.body, &rewritten.body);
    prop_assert!(again.removed.is_empty(), "{:?}", again.removed);
    Ok(true)
}

fn random() -> impl Strategy<Value = (Vec<u8>, TestRng)> {
    Just(()).prop_perturb(|(), mut rng| (random_request(&mut rng).encode_to_vec(), rng))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_rewriting_does_what_the_rules_do_on_generated_types((body, _) in random()) {
        check(&body)?;
    }

    #[test]
    fn the_order_and_repetition_of_fields_change_nothing_of_that((body, mut rng) in random()) {
        check(&scramble(&body, &mut rng))?;
    }

    #[test]
    fn a_mutated_body_is_refused_or_rewritten_by_the_rules(
        (mut body, _) in random(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        for (at, byte, what) in edits {
            let at = at.index(body.len() + 1);
            match what {
                0 => body.insert(at, byte),
                1 => body.truncate(at),
                _ if at == body.len() => {}
                2 => body[at] = byte,
                _ => drop(body.remove(at)),
            }
        }
        check(&body)?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in vec(any::<u8>(), 0..200)) {
        check(&body)?;
    }
}

/// Were nearly all of them refused, the properties would say little.
#[test]
fn most_random_requests_are_taken() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let taken = (0..500).filter(|_| {
        let body = random_request(runner.rng()).encode_to_vec();
        check(&body).unwrap()
    });
    let taken = taken.count();
    assert!(taken > 400, "{taken}");
}
