//! The runners' own series: parsed, held to rules, handed to sinks that cost nobody anything, and filed under the runner
//! and the tenant that were verified.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use http::header::CONTENT_ENCODING;
use telemetry_proto::claims::{RUNNER_ID_CLAIM, RunnerBinding};
use telemetry_proto::{Reason, Signal, Verdict, header};
use telemetry_relay::admission::TenantLimits;
use telemetry_relay::forward::BackendSettings;
use telemetry_relay::operational::{
    Chunk, DropReason, OperationalSink, OperationalSinks, PointLimits, PushSink, SinkError, SinkFuture, SinkLimits,
    SinkOutcome,
};
use telemetry_relay::tenancy::{Rule, Stores, TenantPlan, TenantSettings};
use telemetry_rig::program::Program;
use telemetry_rig::raw::{RawClient, RawRequest, RawResponse};
use telemetry_rig::rig::{Rig, RigRelay};
use telemetry_rig::stores::{Fault, Sample, Store};
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::Point;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

telemetry_rig::suite! {
    without_a_sink_a_marked_batch_is_forwarded_like_others;
    a_marked_batch_goes_to_the_sinks_and_no_other_does;
    what_a_runners_operational_writer_writes_goes_to_the_sinks_and_the_rest_to_the_store;
    sinks_come_and_go_while_the_relay_runs;
    the_answer_is_204_whatever_the_sinks_do;
    what_a_slow_sink_does_not_take_is_dropped_and_counted_for_it_alone;
    a_body_that_cant_be_read_is_400_and_reaches_no_sink;
    a_batch_with_an_id_is_handed_over_once;
    gzip_is_read_and_a_bomb_of_points_is_cut;
    where_the_token_names_no_runner_points_keep_their_own_or_are_dropped;
    every_rule_holds_in_the_built_in_store;
    every_rule_holds_in_the_real_store needs [VictoriaMetrics];
    ten_thousand_points_of_a_batch_are_stored needs [VictoriaMetrics];
    the_largest_point_that_is_taken_by_default_is_stored_whole needs [VictoriaMetrics];
    what_is_shipped_names_the_cluster_and_what_is_stored_does_not;
    points_are_filed_under_the_verified_tenant;
    a_store_that_is_away_costs_its_points_and_no_batch;
    the_program_writes_and_ships_as_configured needs [Relay];
    the_program_hands_on_what_waits_before_it_ends needs [Relay];
}

const SOON: Duration = Duration::from_secs(20);

/// Tells what it was given, then does as it was told to.
struct Told {
    chunks: UnboundedSender<Arc<Chunk>>,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Take,
    Refuse,
    Panic,
    Hang,
}

impl OperationalSink for Told {
    fn take(&self, chunk: Arc<Chunk>) -> SinkFuture<'_> {
        Box::pin(async move {
            let _ = self.chunks.send(chunk);
            match self.what {
                What::Take => Ok(()),
                What::Refuse => Err(SinkError::Other("refused by the test".into())),
                What::Panic => panic!("a panic of the test"),
                What::Hang => std::future::pending().await,
            }
        })
    }
}

/// The chunks that a sink was given.
struct Given(UnboundedReceiver<Arc<Chunk>>);

impl Given {
    async fn next(&mut self) -> Result<Arc<Chunk>, &'static str> {
        let chunk = timeout(SOON, self.0.recv()).await.map_err(|_| "the sink was given nothing")?;
        chunk.ok_or("the sink is gone")
    }

    /// The names of the points of the next chunk.
    async fn names(&mut self) -> Result<Vec<String>, &'static str> {
        Ok(self.next().await?.points().iter().map(|point| point.name.to_string()).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn sink(what: What) -> (Arc<Told>, Given) {
    let (chunks, given) = unbounded_channel();
    (Arc::new(Told { chunks, what }), Given(given))
}

fn sinks(rig: &Rig) -> OperationalSinks {
    match rig.relay() {
        RigRelay::InProcess(relay) => relay.service().expect("a relay that runs").operational_sinks().clone(),
        RigRelay::Program(_) => panic!("the sinks of a program are its own"),
    }
}

fn marked(rig: &Rig, client: &RawClient, runner: usize, body: impl Into<bytes::Bytes>) -> RawRequest {
    let request = client.write(Signal::Metrics).token(&rig.token(runner)).body(body);
    request.header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL)
}

fn expect_204(answer: &RawResponse) -> TestResult {
    answer.expect_delivered()?;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    Ok(())
}

async fn write(rig: &Rig, client: &RawClient, body: impl Into<bytes::Bytes>) -> TestResult {
    expect_204(&marked(rig, client, 0, body).send().await?)
}

/// Waits until so many points have ended like this at a sink.
async fn ended(sinks: &OperationalSinks, name: &str, outcome: SinkOutcome, points: u64) -> TestResult {
    let what = format!("{points} points {} by {name}", outcome.as_str());
    let probe = async || match sinks.metrics().at_sink(name, outcome) {
        seen if seen == points => Ok(()),
        seen => Err(seen.to_string()),
    };
    Ok(wait::until(what, SOON, probe).await?)
}

fn now_ms() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

async fn without_a_sink_a_marked_batch_is_forwarded_like_others() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let body = "up 1 1790000000000\nbad.name 2\n";
    write(&rig, &client, body).await?;
    let requests = rig.built_in_store().requests();
    assert_eq!((requests.len(), &*requests[0].body), (1, body.as_bytes()));
    assert_eq!(requests[0].query, "extra_label=miren_runner%3Dr1");
    Ok(())
}

async fn a_marked_batch_goes_to_the_sinks_and_no_other_does() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let (told, mut given) = sink(What::Take);
    sinks(&rig).attach("told", told);
    write(&rig, &client, "marked 1\n").await?;
    client.write(Signal::Metrics).token(&rig.token(0)).body("plain 1\n").send().await?.expect_delivered()?;
    let chunk = given.next().await?;
    assert_eq!((chunk.runner().as_str(), chunk.tenant().name().as_str()), ("r1", "default"));
    let [point] = chunk.points() else { panic!("{:?}", chunk.points()) };
    assert_eq!((point.name.as_ref(), point.get("miren_runner")), ("marked", Some("r1")));
    assert!((now_ms() - point.timestamp_ms.expect("a timestamp")).abs() < 60_000);
    assert!(given.is_empty());
    let stored: Vec<_> = rig.metrics_store().samples().await?.into_iter().map(|sample| sample.name).collect();
    assert_eq!(stored, ["plain"]);
    Ok(())
}

async fn what_a_runners_operational_writer_writes_goes_to_the_sinks_and_the_rest_to_the_store() -> TestResult {
    let rig = Rig::builder().start().await?;
    let (told, mut given) = sink(What::Take);
    sinks(&rig).attach("told", told);
    rig.runner(0).arm();
    let client = &rig.runner(0).client;
    let (plain, own) = (client.metrics(), client.metrics().operational());
    // In turns: they don't mix.
    for number in 0..3 {
        plain.write(Point::new(format!("plain_{number}"), 1.0))?;
        own.write(Point::new(format!("own_{number}"), 1.0))?;
    }
    assert_eq!(client.flush(SOON).await.delivered, 6);
    assert_eq!(given.names().await?, ["own_0", "own_1", "own_2"]);
    assert!(given.is_empty());
    let mut stored: Vec<String> = rig.metrics_store().samples().await?.into_iter().map(|sample| sample.name).collect();
    stored.sort();
    assert_eq!(stored, ["plain_0", "plain_1", "plain_2"]);
    Ok(())
}

async fn sinks_come_and_go_while_the_relay_runs() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    write(&rig, &client, "a 1\n").await?;
    let (early, mut given_early) = sink(What::Take);
    let early = sinks.attach("early", early);
    write(&rig, &client, "b 1\n").await?;
    let (late, mut given_late) = sink(What::Take);
    let late = sinks.attach("late", late);
    write(&rig, &client, "c 1\n").await?;
    assert!(sinks.detach(early));
    write(&rig, &client, "d 1\n").await?;
    assert!(sinks.detach(late));
    write(&rig, &client, "e 1\n").await?;
    assert_eq!((given_early.names().await?, given_early.names().await?), (vec!["b".to_owned()], vec!["c".to_owned()]));
    assert_eq!((given_late.names().await?, given_late.names().await?), (vec!["c".to_owned()], vec!["d".to_owned()]));
    assert!(given_early.is_empty() && given_late.is_empty());
    let stored: Vec<_> = rig.metrics_store().samples().await?.into_iter().map(|sample| sample.name).collect();
    assert_eq!(stored, ["a", "e"]);
    Ok(())
}

async fn the_answer_is_204_whatever_the_sinks_do() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    let mut given = Vec::new();
    for (name, what) in
        [("refusing", What::Refuse), ("panicking", What::Panic), ("hanging", What::Hang), ("taking", What::Take)]
    {
        let (told, chunks) = sink(what);
        sinks.attach(name, told);
        given.push(chunks);
    }
    for number in 0..3 {
        write(&rig, &client, format!("up {number}\n")).await?;
    }
    ended(&sinks, "refusing", SinkOutcome::Refused, 3).await?;
    ended(&sinks, "panicking", SinkOutcome::Panicked, 3).await?;
    ended(&sinks, "taking", SinkOutcome::Taken, 3).await?;
    for number in 0..3 {
        let chunk = given[3].next().await?;
        assert_eq!(chunk.points()[0].value, f64::from(number), "in order");
    }
    given[2].next().await?;
    assert!(given[2].is_empty(), "one at a time");
    Ok(())
}

async fn what_a_slow_sink_does_not_take_is_dropped_and_counted_for_it_alone() -> TestResult {
    let queues = SinkLimits { max_chunks: 1, timeout: Duration::from_millis(500), ..SinkLimits::default() };
    let rig = Rig::builder().relay(move |relay| relay.operational(PointLimits::default(), queues)).start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    let (hanging, mut given_hanging) = sink(What::Hang);
    let (taking, mut given_taking) = sink(What::Take);
    sinks.attach("hanging", hanging);
    sinks.attach("taking", taking);
    let body = "up 1\n".repeat(5_000);
    write(&rig, &client, "first 1\n").await?;
    assert_eq!(given_hanging.names().await?, ["first"]);
    given_taking.next().await?;
    for number in 0..20 {
        write(&rig, &client, format!("up {number}\n")).await?;
        assert_eq!(given_taking.names().await?, ["up"]);
    }
    assert!(sinks.metrics().at_sink("hanging", SinkOutcome::QueueFull) > 0);
    assert_eq!(sinks.metrics().at_sink("taking", SinkOutcome::QueueFull), 0);
    ended(&sinks, "taking", SinkOutcome::Taken, 21).await?;
    // A batch of many chunks is answered as well, though none of them finds room.
    write(&rig, &client, body).await?;
    let all = async || {
        use SinkOutcome::{QueueFull, TimedOut};
        let seen = [QueueFull, TimedOut].map(|outcome| sinks.metrics().at_sink("hanging", outcome));
        if seen.iter().sum::<u64>() == 5_021 { Ok(seen[1]) } else { Err(format!("{seen:?}")) }
    };
    assert!(wait::until("an end of every point", SOON, all).await? > 0);
    Ok(())
}

async fn a_body_that_cant_be_read_is_400_and_reaches_no_sink() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let (told, mut given) = sink(What::Take);
    let sinks = sinks(&rig);
    sinks.attach("told", told);
    let whole = gzip(b"up 1\n")?;
    for (body, encoding) in [
        (whole[..whole.len() - 4].to_vec(), "gzip"),
        (b"up 1\n".to_vec(), "gzip"),
        (whole.clone(), "identity"),
        (vec![0xff; 100], "identity"),
    ] {
        let answer = marked(&rig, &client, 0, body).header(CONTENT_ENCODING, encoding).send().await?;
        answer.expect_refusal(Reason::BodyMalformed)?;
    }
    // Bad lines are no bad body, and nothing is something that can be read.
    for body in [&b"bad.name 1\nup{a=\"\xff\"} 1\nup 1\n"[..], b"nothing of it is a point", b"", b"# HELP up\n"] {
        write(&rig, &client, body).await?;
    }
    assert_eq!(given.names().await?, ["up"]);
    assert!(given.is_empty());
    let dropped = [DropReason::Unparseable, DropReason::NotUtf8].map(|reason| sinks.metrics().dropped(reason));
    assert_eq!((sinks.metrics().accepted(), dropped), (1, [2, 1]));
    Ok(())
}

async fn a_batch_with_an_id_is_handed_over_once() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let (told, mut given) = sink(What::Take);
    sinks(&rig).attach("told", told);
    let batch = || marked(&rig, &client, 0, "up 1\n").header(header::BATCH_ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV");
    expect_204(&batch().send().await?)?;
    let again = batch().send().await?;
    assert_eq!((again.status, again.verdict()), (StatusCode::NO_CONTENT, Some(Verdict::Duplicate)));
    write(&rig, &client, "last 1\n").await?;
    assert_eq!((given.names().await?, given.names().await?), (vec!["up".to_owned()], vec!["last".to_owned()]));
    Ok(())
}

async fn gzip_is_read_and_a_bomb_of_points_is_cut() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let (told, mut given) = sink(What::Take);
    let sinks = sinks(&rig);
    sinks.attach("told", told);
    let points = 1_000_000;
    let body = gzip("up 1\n".repeat(points).as_bytes())?;
    assert!(body.len() < 100_000);
    expect_204(&marked(&rig, &client, 0, body).header(CONTENT_ENCODING, "gzip").send().await?)?;
    for _ in 0..10 {
        assert_eq!(given.next().await?.points().len(), 1_000);
    }
    assert!(given.is_empty());
    assert_eq!(sinks.metrics().accepted(), 10_000);
    assert_eq!(sinks.metrics().dropped(DropReason::OverBatchLimit), points as u64 - 10_000);
    Ok(())
}

async fn where_the_token_names_no_runner_points_keep_their_own_or_are_dropped() -> TestResult {
    let rig = Rig::builder().runner_binding(RunnerBinding::IfPresent).start().await?;
    let client = rig.raw_client(0).await?;
    let (told, mut given) = sink(What::Take);
    let sinks = sinks(&rig);
    sinks.attach("told", told);
    sinks.attach("store", to_store(rig.metrics_store()));
    let nameless = rig.token_for(&rig.runner(0).id).without(RUNNER_ID_CLAIM).sign(rig.signing_key());
    let body = "none 1\nempty{miren_runner=\"\"} 1\nother{miren_runner=\"r9\",miren_cluster=\"x\"} 1\n";
    for token in [nameless, rig.token(0)] {
        let request = client.write(Signal::Metrics).token(&token).body(body);
        expect_204(&request.header(header::TELEMETRY_STREAM, header::STREAM_OPERATIONAL).send().await?)?;
    }
    let runners = |chunk: &Chunk| -> Vec<_> {
        let of = |point: &telemetry_proto::exposition::Point<'_>| point.get("miren_runner").map(str::to_owned);
        chunk.points().iter().map(|point| (point.name.to_string(), of(point).unwrap_or_default())).collect()
    };
    let pair = |name: &str, runner: &str| (name.to_owned(), runner.to_owned());
    let chunk = given.next().await?;
    assert_eq!((chunk.runner().as_str(), runners(&chunk)), ("r1", vec![pair("other", "r9")]));
    let named = given.next().await?;
    assert_eq!(runners(&named), [pair("none", "r1"), pair("empty", "r1"), pair("other", "r1")]);
    assert_eq!(sinks.metrics().dropped(DropReason::NoRunner), 2);
    // The built-in sink leaves them as they are.
    let mut stored = rig.metrics_store().wait_for_samples(4).await?;
    stored.sort_by(|a, b| (&a.name, a.label("miren_runner")).cmp(&(&b.name, b.label("miren_runner"))));
    let stored: Vec<_> = stored.iter().map(|sample| (sample.name.as_str(), sample.label("miren_runner"))).collect();
    assert_eq!(stored, [("empty", "r1"), ("none", "r1"), ("other", "r1"), ("other", "r9")]);
    Ok(())
}

async fn every_rule_holds_in_the_built_in_store() -> TestResult {
    every_rule_holds_in(&Store::built_in().await?).await
}

async fn every_rule_holds_in_the_real_store() -> TestResult {
    every_rule_holds_in(&Store::real(Program::VictoriaMetrics).await?).await
}

fn to_store(store: &Store) -> Arc<PushSink> {
    Arc::new(PushSink::to_store(BackendSettings::new(store.address().into())))
}

async fn every_rule_holds_in(store: &Store) -> TestResult {
    const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    sinks.attach("store", to_store(store));
    let now = now_ms();
    let many: Vec<_> = (0..37).map(|i| format!("l{i}=\"v\"")).collect();
    let good = [
        format!("plain 1 {now}"),
        format!("other{{miren_runner=\"r9\",a=\"b\"}} 2 {now}"),
        format!("cluster{{miren_cluster=\"x\"}} 3 {now}"),
        format!("quoted{{a=\"q\\\"\\\\\\n\"}} 4 {now}"),
        format!("twice{{a=\"1\",a=\"2\"}} 5 {now}"),
        format!("near{{entity=\"miren/control2\",x=\"miren/control\"}} 6 {now}"),
        format!("soon 7 {}", now + DAY_MS),
        "unstamped 8".to_owned(),
        format!("long{{a=\"{}\"}} 9 {now}", "v".repeat(4_096)),
        format!("colon:name 10 {now}"),
    ];
    let bad = [
        "dotted.name 1".to_owned(),
        "no_value".to_owned(),
        "up{entity=\"miren/control\"} 1".to_owned(),
        "up{entity=\"miren/control\",entity=\"e\"} 1".to_owned(),
        "up{entity=\"e\",entity=\"miren/control\"} 1".to_owned(),
        "dotted.name{entity=\"miren/control\"} 1".to_owned(),
        format!("late 1 {}", now + 3 * DAY_MS),
        "not_a_number NaN".to_owned(),
        format!("too_long{{a=\"{}\"}} 1", "v".repeat(4_097)),
        format!("{} 1", "n".repeat(257)),
        format!("crowded{{{}}} 1", many.join(",")),
        format!("huge{{a=\"{}\"}} 1", "v".repeat(300_000)),
    ];
    let lines: Vec<_> = good.iter().chain(&bad).map(String::as_str).collect();
    write(&rig, &client, lines.join("\n")).await?;
    ended(&sinks, "store", SinkOutcome::Taken, good.len() as u64).await?;

    let mut samples = store.wait_for_samples(good.len()).await?;
    samples.sort_by(|a, b| a.value.total_cmp(&b.value));
    let names: Vec<_> = samples.iter().map(|sample| sample.name.as_str()).collect();
    let expected = ["plain", "other", "cluster", "quoted", "twice", "near", "soon", "unstamped", "long", "colon:name"];
    assert_eq!(names, expected);
    for sample in &samples {
        assert_eq!((sample.label("miren_runner"), sample.label("miren_cluster")), ("r1", ""), "{}", sample.name);
    }
    let sample = |name: &str| -> &Sample { samples.iter().find(|sample| sample.name == name).expect("a sample") };
    assert_eq!(sample("quoted").label("a"), "q\"\\\n");
    assert_eq!(sample("twice").label("a"), "2");
    assert_eq!(sample("near").label("entity"), "miren/control2");
    assert_eq!(sample("long").label("a").len(), 4_096);
    assert_eq!((sample("plain").timestamp_ms, sample("soon").timestamp_ms), (now, now + DAY_MS));
    assert!((sample("unstamped").timestamp_ms - now).abs() < 60_000);

    use DropReason::{
        ControlEntity, InFuture, LineTooLong, NameTooLong, Nan, TooManyLabels, Unparseable, ValueTooLong,
    };
    let reasons = [
        (Unparseable, 2),
        (ControlEntity, 4),
        (InFuture, 1),
        (Nan, 1),
        (ValueTooLong, 1),
        (NameTooLong, 1),
        (TooManyLabels, 1),
        (LineTooLong, 1),
    ];
    for (reason, points) in reasons {
        assert_eq!(sinks.metrics().dropped(reason), points, "{}", reason.as_str());
    }
    Ok(())
}

async fn ten_thousand_points_of_a_batch_are_stored() -> TestResult {
    let store = Store::real(Program::VictoriaMetrics).await?;
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    sinks.attach("store", to_store(&store));
    let first = now_ms() - 20_000;
    let lines = (0..10_500).map(|i| format!("up{{kind=\"k{}\"}} {i} {}\n", i % 7, first + i));
    write(&rig, &client, lines.collect::<String>()).await?;
    ended(&sinks, "store", SinkOutcome::Taken, 10_000).await?;
    let samples = store.wait_for_samples(10_000).await?;
    assert_eq!(samples.len(), 10_000);
    assert!(samples.iter().all(|sample| sample.value < 10_000.0), "the first ones are taken");
    assert_eq!(sinks.metrics().dropped(DropReason::OverBatchLimit), 500);
    Ok(())
}

async fn what_is_shipped_names_the_cluster_and_what_is_stored_does_not() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let second = Store::built_in().await?;
    let sinks = sinks(&rig);
    sinks.attach("store", to_store(rig.metrics_store()));
    sinks.attach("ship", Arc::new(PushSink::ship(second.address().into(), "prod".parse()?)));
    write(&rig, &client, "up{a=\"b\",miren_cluster=\"other\"} 1 1790000000000\n").await?;
    let stored = rig.metrics_store().wait_for_samples(1).await?;
    let shipped = second.wait_for_samples(1).await?;
    let labels = |sample: &Sample| sample.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
    assert_eq!(labels(&stored[0]), "a=b miren_runner=r1");
    assert_eq!(labels(&shipped[0]), "a=b miren_cluster=prod miren_runner=r1");
    assert_eq!((stored[0].value, shipped[0].timestamp_ms), (1.0, 1_790_000_000_000));
    Ok(())
}

/// Two runners, of the tenants "acme" and "other".
async fn two_tenants() -> Result<Rig, Box<dyn std::error::Error + Send + Sync>> {
    let mut plan = TenantPlan::default();
    for (name, runner) in [("acme", "r1"), ("other", "r2")] {
        let rule = Rule { runner: Some(runner.parse()?), ..Rule::default() };
        let (name, limits) = (name.parse()?, TenantLimits::default());
        plan.tenants.push(TenantSettings { name, rules: vec![rule], account: None, signals: None, limits });
    }
    let tenants = plan.check(&Stores::default().with(Signal::Metrics, false))?;
    Ok(Rig::builder().runners(2).relay(move |relay| relay.tenants(tenants.clone())).start().await?)
}

async fn the_largest_point_that_is_taken_by_default_is_stored_whole() -> TestResult {
    let store = Store::real(Program::VictoriaMetrics).await?;
    let rig = two_tenants().await?;
    let client = rig.raw_client(0).await?;
    let limits = PointLimits::default();
    // Shipped, for the one label more.
    sinks(&rig).attach("ship", Arc::new(PushSink::ship(store.address().into(), "prod".parse()?)));
    let name = "n".repeat(limits.max_name_bytes);
    let label_name = "l".repeat(limits.max_name_bytes);
    let value = "v".repeat(limits.max_value_bytes);
    // Not all of them that long: a series has 64 KiB in all.
    let mut labels: Vec<_> = (2..limits.max_labels).map(|i| format!("l{i}=\"v\"")).collect();
    labels.push(format!("{label_name}=\"{value}\""));
    write(&rig, &client, format!("{name}{{{}}} 1\n", labels.join(","))).await?;
    let samples = store.wait_for_samples(1).await?;
    let [sample] = &samples[..] else { panic!("{} samples", samples.len()) };
    assert_eq!((&sample.name, sample.label(&label_name)), (&name, value.as_str()));
    assert_eq!(sample.labels.len(), 39);
    let ours = ["miren_runner", "miren_tenant", "miren_cluster"].map(|label| sample.label(label));
    assert_eq!(ours, ["r1", "acme", "prod"]);
    Ok(())
}

async fn points_are_filed_under_the_verified_tenant() -> TestResult {
    let rig = two_tenants().await?;
    let second = Store::built_in().await?;
    let sinks = sinks(&rig);
    sinks.attach("store", to_store(rig.metrics_store()));
    sinks.attach("ship", Arc::new(PushSink::ship(second.address().into(), "prod".parse()?)));
    for runner in [0, 1] {
        let client = rig.raw_client(runner).await?;
        let body = "up{miren_tenant=\"mine\"} 1 1790000000000\n";
        expect_204(&marked(&rig, &client, runner, body).send().await?)?;
    }
    for store in [rig.metrics_store(), &second] {
        let samples = store.wait_for_samples(2).await?;
        let mut seen: Vec<_> = samples.iter().map(|s| (s.label("miren_runner"), s.label("miren_tenant"))).collect();
        seen.sort_unstable();
        assert_eq!(seen, [("r1", "acme"), ("r2", "other")]);
    }
    Ok(())
}

async fn a_store_that_is_away_costs_its_points_and_no_batch() -> TestResult {
    let rig = Rig::builder().start().await?;
    let client = rig.raw_client(0).await?;
    let sinks = sinks(&rig);
    sinks.attach("store", to_store(rig.metrics_store()));
    rig.metrics_store().kill().await?;
    write(&rig, &client, "lost 1\n").await?;
    ended(&sinks, "store", SinkOutcome::Refused, 1).await?;
    rig.metrics_store().restart().await?;
    write(&rig, &client, "kept 1\n").await?;
    let samples = rig.metrics_store().wait_for_samples(1).await?;
    assert_eq!((samples.len(), samples[0].name.as_str()), (1, "kept"));
    Ok(())
}

async fn the_program_writes_and_ships_as_configured() -> TestResult {
    let second = Store::built_in().await?;
    let settings = format!(
        "[operational]\nto_store = true\nship_to = \"http://{}\"\ncluster = \"prod\"\nmax_points = 2\n",
        second.address()
    );
    let rig = Rig::builder().relay_program(&settings).start().await?;
    let client = rig.raw_client(0).await?;
    write(&rig, &client, "a 1\nb.c 2\nd{miren_runner=\"r9\"} 3\ne 4\n").await?;
    for (store, cluster) in [(rig.metrics_store(), ""), (&second, "prod")] {
        let mut samples = store.wait_for_samples(2).await?;
        samples.sort_by(|a, b| a.name.cmp(&b.name));
        let seen: Vec<_> = samples
            .iter()
            .map(|sample| (sample.name.as_str(), sample.label("miren_runner"), sample.label("miren_cluster")))
            .collect();
        assert_eq!(seen, [("a", "r1", cluster), ("d", "r1", cluster)]);
    }
    Ok(())
}

async fn the_program_hands_on_what_waits_before_it_ends() -> TestResult {
    let rig = Rig::builder().relay_program("[operational]\nto_store = true\n").start().await?;
    let client = rig.raw_client(0).await?;
    rig.built_in_store().always(Some(Fault::Delay(Duration::from_millis(300))));
    write(&rig, &client, "up 1\n".repeat(10_000)).await?;
    rig.relay().stop().await?;
    assert_eq!(rig.metrics_store().samples().await?.len(), 10_000);
    Ok(())
}
