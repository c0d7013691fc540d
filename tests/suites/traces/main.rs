//! Spans from runners to the store: under the verified runner, with what is listed and nothing else, or dropped and
//! counted. The rows of the table in `docs/traces.md` are tests of [`symptoms`].

mod agent;
mod arrival;
mod canary;
mod gateways;
mod outages;
mod switching;
mod symptoms;
mod tokens;

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use telemetry_proto::Signal;
use telemetry_relay::traces::TracesSettings;
use telemetry_rig::rig::{Rig, RigBuilder, RigRunner, StoreKind};
use telemetry_rig::wait::{self, TimedOut};
use telemetry_runner_client::trace::{Entry, SpanWriter};
use telemetry_runner_client::{Client, DropReason, Tally};

use agent::*;
use arrival::*;
use canary::*;
use gateways::*;
use outages::*;
use switching::*;
use symptoms::*;
use tokens::*;

telemetry_rig::suite! {
    spans_of_tracing_arrive_under_the_verified_runner_with_what_is_listed;
    spans_of_tracing_are_in_the_real_store_under_the_verified_runner needs [VictoriaTraces];
    spans_of_the_sdk_arrive_under_the_verified_runner_with_what_is_listed;
    spans_of_the_sdk_are_in_the_real_store_under_the_verified_runner needs [VictoriaTraces];
    a_journey_across_three_runners_is_one_trace_with_root_attempts_and_link;
    a_journey_across_three_runners_is_one_trace_in_the_real_store needs [VictoriaTraces];
    spans_of_the_python_sdk_arrive_through_the_agent_under_its_runner_with_what_is_listed needs [RunnerAgent, PeerPython];
    a_journey_across_three_processes_is_one_trace_with_root_attempts_and_link needs [RunnerAgent, PeerPython];
    the_agent_refuses_spans_at_once_and_keeps_none_where_the_coordinator_takes_no_traces needs [RunnerAgent, PeerPython];
    spans_that_come_before_the_coordinator_was_heard_are_asked_for_again needs [RunnerAgent, PeerPython];
    spans_wait_in_the_memory_of_the_agent_up_to_their_bound_and_never_on_its_disk needs [RunnerAgent];
    spans_that_the_relay_rejects_are_counted_and_never_on_the_disk_of_the_agent needs [RunnerAgent];
    log_records_inside_a_span_name_it_and_others_name_none;
    two_implementations_with_one_ratio_agree_on_100_000_trace_ids;
    the_callers_sampled_flag_changes_nothing;

    a_canary_in_every_position_of_otlp_reaches_no_store;
    a_canary_said_to_the_writers_of_a_runner_reaches_no_store;
    a_runner_that_claims_to_be_another_is_overruled;
    what_is_no_otlp_is_refused_and_never_repaired;
    bad_spans_are_400_or_413_and_cost_the_relay_no_memory needs [Relay];

    a_token_for_other_signals_opens_no_traces_and_one_for_traces_opens_no_other;
    a_runner_without_the_grant_for_traces_drops_its_spans_as_no_credential_and_its_metrics_go_on;
    a_token_serves_until_it_ends_while_its_issuer_is_away_and_then_spans_end_as_no_credential;
    while_the_coordinator_is_away_spans_end_as_no_credential_only_after_the_token_has_ended;

    a_gateway_writes_under_its_own_name_and_tenant_whatever_it_claims needs [Relay];
    a_gateway_needs_its_own_certificate_its_own_token_and_a_signal_of_its_own needs [Relay];
    a_gateway_is_told_of_the_signals_that_it_may_write_and_a_runner_of_all needs [Relay];
    another_token_in_the_file_is_the_one_that_counts_within_seconds needs [Relay];

    switched_on_while_runners_run_spans_flow_within_the_polling_time_and_stop_when_switched_off;
    the_ratio_is_the_coordinators_and_changes_with_it;

    a_store_that_is_away_costs_the_spans_of_that_time_and_there_is_no_burst_when_it_returns;
    a_store_that_is_away_costs_the_agent_no_memory needs [RunnerAgent];
    a_relay_that_is_away_costs_the_spans_of_that_time_and_those_after_it_arrive;

    no_spans_at_all_where_the_coordinator_takes_no_traces;
    no_spans_at_all_where_the_coordinator_can_not_be_asked;
    no_spans_of_background_work_and_few_of_the_data_path;
    spans_of_others_and_not_of_a_runner_that_was_removed;
    a_span_without_what_was_said_about_it_if_that_is_not_listed;
    status_401_where_tokens_are_not_accepted;
    status_403_where_tokens_grant_no_traces;
    status_403_where_traces_were_switched_off_a_moment_ago;
    code_0_where_there_is_no_connection;
    unreachable_grows_where_the_store_is_away;
    queue_full_grows_where_the_store_is_too_slow;
    a_journey_can_not_be_opened_before_it_is_settled;
}

/// How often runners ask for the policy.
const POLL: Duration = Duration::from_millis(200);
/// Longer than anything takes that works.
const DEADLINE: Duration = Duration::from_secs(20);

/// A rig whose coordinator takes all traces.
fn rig(store: StoreKind) -> RigBuilder {
    let all = TracesSettings { sample_ratio: 1.0, ..TracesSettings::default() };
    Rig::builder()
        .traces(store)
        .relay(move |relay| relay.traces(all.clone()))
        .client(|client| client.policy_interval(POLL).service("agent", Some("1.2.3")))
}

/// The runner's writer, once the policy has come.
async fn writer(runner: &RigRunner) -> Result<SpanWriter, TimedOut> {
    let writer = runner.client.spans();
    becomes(&writer, true).await?;
    Ok(writer)
}

async fn becomes(writer: &SpanWriter, enabled: bool) -> Result<(), TimedOut> {
    let look = async || if writer.is_enabled() == enabled { Ok(()) } else { Err("not yet".to_owned()) };
    wait::until(format!("traces become enabled: {enabled}"), DEADLINE, look).await
}

/// Writes control spans with these names.
fn write(writer: &SpanWriter, names: impl IntoIterator<Item = u32>) {
    for name in names {
        writer.entry(Entry::Control, format!("s{name}"), None).end();
    }
}

fn tally(client: &Client) -> Tally {
    let tally = client.tally(Signal::Traces);
    assert_eq!(tally.written, tally.delivered + tally.dropped_in_all() + tally.waiting, "{tally:?}");
    tally
}

/// Waits until at least `count` spans were dropped for `reason`.
async fn dropped(client: &Client, reason: DropReason, count: u64) -> Result<Tally, TimedOut> {
    let look = async || match tally(client) {
        tally if tally.dropped(reason) >= count => Ok(tally),
        tally => Err(format!("{tally:?}")),
    };
    wait::until(format!("{count} spans dropped as {reason}"), DEADLINE, look).await
}

/// The value of a series of the client's own metrics.
fn series(client: &Client, series: &str) -> f64 {
    scraped(|registry| client.register_metrics(registry), series)
}

/// The value of a series, as a scrape shows it; 0 if it is not there.
fn scraped(register: impl FnOnce(&mut Registry), series: &str) -> f64 {
    let mut registry = Registry::default();
    register(&mut registry);
    let mut text = String::new();
    // A String takes every write.
    let _ = encode(&mut text, &registry);
    let value = text.lines().find_map(|line| line.strip_prefix(series));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}
