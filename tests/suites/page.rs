//! The page for operators, in a real browser.

use std::time::{Duration, Instant};

use serde_json::Value;
use telemetry_proto::Signal;
use telemetry_rig::browser::{Browser, View};
use telemetry_rig::http::HttpClient;
use telemetry_rig::net::free_address;
use telemetry_rig::rig::Rig;
use telemetry_rig::suite::TestResult;
use telemetry_rig::wait;
use telemetry_runner_client::{LogRecord, Point};

telemetry_rig::suite! {
    the_numbers_of_the_page_are_those_of_the_status needs [Relay, Chromium];
    a_refusal_shows_up_by_itself_with_its_reason needs [Relay, Chromium];
    it_asks_nobody_else_and_can_be_read_on_a_phone_in_the_dark_and_without_charts needs [Relay, Chromium];
    a_relay_that_goes_away_is_said_to_be_away needs [Relay, Chromium];
}

/// How soon a refusal is on the page.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(30);

/// A relay that was written to, and its page.
struct Shown {
    rig: Rig,
    admin: HttpClient,
    browser: Browser,
}

impl Shown {
    async fn start() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let address = free_address()?;
        let settings = format!("[admin]\naddress = \"{address}\"");
        let rig = Rig::builder().runners(2).relay_program(&settings).start().await?;
        for number in 0..2 {
            let runner = rig.runner(number);
            runner.arm();
            runner.client.metrics().write(Point::new("up", 1.0))?;
            runner.client.logs().write(&LogRecord::new("app", "stdout", "ready"))?;
            let report = runner.client.flush(DEADLINE).await;
            assert_eq!((report.waiting, report.dropped), (0, 0));
        }
        let mut browser = Browser::start().await?;
        browser.look(View::DESK).await?;
        browser.open(&format!("http://{address}/")).await?;
        Ok(Self { rig, admin: HttpClient::new(address), browser })
    }

    async fn status(&self) -> Result<Value, String> {
        let (_, body) = self.admin.get("/status").await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }
}

/// As the page writes sizes below 1 KiB, rates and times.
fn bytes(value: &Value) -> String {
    format!("{} B", value.as_u64().unwrap_or(u64::MAX))
}

fn rate(value: &Value) -> String {
    let value = value.as_f64().unwrap_or(f64::NAN);
    if value < 10.0 { format!("{value:.1}/s") } else { format!("{value:.0}/s") }
}

/// What differs between the status and the page, in words.
async fn difference(shown: &mut Shown) -> Result<Option<String>, String> {
    let status = shown.status().await?;
    let browser = &mut shown.browser;
    let say = |error: telemetry_rig::browser::BrowserError| error.to_string();
    let mut differences = Vec::new();
    let mut same = |what: &str, on_page: Option<&String>, expected: String| {
        if on_page != Some(&expected) {
            differences.push(format!("{what}: {on_page:?} on the page, {expected:?} in the status"));
        }
    };
    let rows = browser.rows("runners").await.map_err(say)?;
    same("runners", Some(&rows.len().to_string()), status["runners"].as_array().map_or(0, Vec::len).to_string());
    for (row, runner) in rows.iter().zip(status["runners"].as_array().into_iter().flatten()) {
        same("runner", row.get("runner"), runner["id"].as_str().unwrap_or_default().to_owned());
        same("from", row.get("from"), runner["remote"].as_str().unwrap_or_default().to_owned());
        same("requests", row.get("requests"), runner["requests"].to_string());
        same("refused", row.get("refused"), runner["refused"].to_string());
        same("stored", row.get("stored"), bytes(&runner["bytes"]));
    }
    let rows = browser.rows("tenants").await.map_err(say)?;
    for (row, tenant) in rows.iter().zip(status["tenants"].as_array().into_iter().flatten()) {
        same("tenant", row.get("tenant"), tenant["name"].as_str().unwrap_or_default().to_owned());
        same(
            "at the stores",
            row.get("at the stores"),
            format!("{} of {}", tenant["in_flight"], tenant["max_in_flight"]),
        );
        same("waiting", row.get("waiting"), tenant["waiting"].to_string());
        same("taken", row.get("taken"), tenant["accepted"].to_string());
    }
    let rows = browser.rows("stores").await.map_err(say)?;
    for (row, store) in rows.iter().zip(status["stores"].as_array().into_iter().flatten()) {
        same("signal", row.get("signal"), store["signal"].as_str().unwrap_or_default().to_owned());
        same("address", row.get("address"), store["address"].as_str().unwrap_or_default().to_owned());
        let latency = store["latency_seconds"].as_f64().map(|seconds| format!("{:.1} ms", seconds * 1e3));
        same("answers in", row.get("answers in"), latency.unwrap_or_default());
    }
    let refusals = browser.rows("refusals").await.map_err(say)?.len();
    same("refusals", Some(&refusals.to_string()), status["refusals"].as_array().map_or(0, Vec::len).to_string());
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    same("warnings", Some(&browser.text("warning-list").await.map_err(say)?), warnings.collect());
    if let Some(moment) = status["history"].as_array().and_then(|moments| moments.last()) {
        same("requests now", Some(&browser.text("n-requests").await.map_err(say)?), rate(&moment["requests"]));
        same("refused now", Some(&browser.text("n-refused").await.map_err(say)?), rate(&moment["refused"]));
    } else {
        differences.push("there is no moment of the history yet".to_owned());
    }
    Ok((!differences.is_empty()).then(|| differences.join("; ")))
}

async fn the_numbers_of_the_page_are_those_of_the_status() -> TestResult {
    let mut shown = Shown::start().await?;
    // The numbers move on between the two looks now and then.
    wait::until("the page with the numbers of the status", DEADLINE, async || match difference(&mut shown).await? {
        None => Ok(()),
        Some(difference) => Err(difference),
    })
    .await?;
    let rows = shown.browser.rows("runners").await?;
    assert_eq!(rows.len(), 2);
    assert!(rows[0]["token ends"].starts_with("in ") && rows[0]["certificate ends"].starts_with("in "), "{rows:?}");
    assert_ne!(rows[0]["stored"], "0 B");
    assert_eq!(shown.browser.text("ready").await?, "● ready");
    // What needs somebody soon is there as soon as there is something.
    std::fs::write(shown.rig.relay_program().folder().join("relay.toml"), "nonsense = 1\n")?;
    wait::until("the warning on the page", DEADLINE, async || match shown.browser.text("warning-list").await {
        Ok(text) if text.contains("could not be put in force") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    assert!(shown.browser.complaints().is_empty(), "{:?}", shown.browser.complaints());
    Ok(())
}

async fn a_refusal_shows_up_by_itself_with_its_reason() -> TestResult {
    let mut shown = Shown::start().await?;
    let browser = &mut shown.browser;
    wait::until("the page", DEADLINE, async || match browser.rows("runners").await {
        Ok(rows) if rows.len() == 2 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    assert!(browser.rows("refusals").await?.is_empty());

    // One of two, for a machine that is busy with something else.
    let mut best = Duration::MAX;
    // What is known of a runner is known of its open connections.
    let mut clients = Vec::new();
    for (number, runner) in ["r1", "r2"].into_iter().enumerate() {
        let client = shown.rig.raw_client(number).await?;
        let since = Instant::now();
        let response = client.write(Signal::Metrics).body("up 1\n").send().await?;
        assert_eq!(response.status.as_u16(), 401);
        wait::until("the refusal on the page", DEADLINE, async || match browser.rows("refusals").await {
            Ok(rows) if rows.iter().any(|row| row["reason"] == "token-missing" && row["runner"] == runner) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await?;
        best = best.min(since.elapsed());
        clients.push(client);
    }
    println!("a refusal was on the page after {} ms", best.as_millis());
    assert!(best < SHOWN_WITHIN, "{best:?}");
    let runners = browser.rows("runners").await?;
    assert!(runners[0]["last refusal"].starts_with("token-missing, "), "{runners:?}");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    Ok(())
}

async fn it_asks_nobody_else_and_can_be_read_on_a_phone_in_the_dark_and_without_charts() -> TestResult {
    let mut shown = Shown::start().await?;
    let browser = &mut shown.browser;
    let back = "getComputedStyle(document.body).backgroundColor";
    let mut backs = Vec::new();
    for view in [View::DESK, View::DARK, View::PHONE, View { dark: true, ..View::PHONE }] {
        browser.look(view).await?;
        wait::until("the page with its runners", DEADLINE, async || match browser.rows("runners").await {
            Ok(rows) if rows.len() == 2 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await?;
        let width = browser.evaluate("document.documentElement.scrollWidth").await?;
        assert_eq!(width, view.width, "nothing sticks out at {view:?}");
        backs.push(browser.evaluate(back).await?);
    }
    assert!(backs[0] == backs[2] && backs[1] == backs[3] && backs[0] != backs[1], "{backs:?}");
    let words =
        browser.evaluate("[...document.querySelectorAll('svg')].map((chart) => chart.getAttribute('aria-label'))");
    let words: Vec<String> = serde_json::from_value(words.await?).map_err(|error| error.to_string())?;
    assert_eq!(words.len(), 4);
    assert!(words.iter().all(|words| words.contains("over the last 15 minutes: ")), "{words:?}");
    let origin = browser.evaluate("location.origin + '/'").await?;
    let origin = origin.as_str().unwrap_or_default().to_owned();
    let elsewhere = |url: &&String| !url.starts_with(&origin) && !url.starts_with("data:") && *url != "about:blank";
    assert_eq!(browser.requests().iter().find(elsewhere), None);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
    Ok(())
}

async fn a_relay_that_goes_away_is_said_to_be_away() -> TestResult {
    let mut shown = Shown::start().await?;
    let browser = &mut shown.browser;
    let mut wait_for = async |words: &str| {
        let seen = wait::until(words.to_owned(), DEADLINE, async || match browser.text("ready").await {
            Ok(text) if text == words => Ok(()),
            other => Err(format!("{other:?}")),
        });
        seen.await
    };
    wait_for("● ready").await?;
    shown.rig.relay_program().kill().await?;
    wait_for("▲ no answer from the relay").await?;
    shown.rig.relay_program().restart().await?;
    wait_for("● ready").await?;
    Ok(())
}
