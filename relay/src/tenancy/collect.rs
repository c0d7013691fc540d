//! The metrics of all tenants.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use telemetry_proto::{Reason, Signal};

use super::meter::Meter;
use super::{Tenancy, Tenant};

/// A count of one signal, its name and what it says.
type Bytes = (&'static str, &'static str, fn(&Meter, Signal) -> u64);

const BYTES: [Bytes; 2] = [
    ("tenant_received", "Bytes of a tenant's complete bodies, as received", Meter::received_bytes),
    ("tenant_forwarded", "Bytes of a tenant's bodies that a store acknowledged, as received", Meter::forwarded_bytes),
];

/// A level of now, its name and what it says.
type Level = (&'static str, &'static str, fn(&Tenant) -> u64);

const LEVELS: [Level; 4] = [
    ("tenant_in_flight", "Requests of a tenant at the stores", |t| t.allowance().in_flight()),
    ("tenant_waiting", "Requests of a tenant that wait for a place at the stores", |t| t.allowance().waiting() as u64),
    ("tenant_body_memory_bytes", "Memory that a tenant's bodies hold", |t| t.allowance().body_bytes()),
    ("tenant_active_runners", "Runners of a tenant that came within the last minute", |t| {
        t.allowance().active_runners() as u64
    }),
];

/// Read when they are asked for, of the tenants that are in force: one that is removed takes its series along, and the label
/// sets are as bounded as the configuration is.
impl Collector for Tenancy {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tenants = self.tenants();
        encode_requests(&tenants, &mut encoder)?;
        for (name, help, count) in BYTES {
            let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Counter)?;
            for (tenant, signal) in tenants.iter().flat_map(|tenant| Signal::ALL.map(|signal| (tenant, signal))) {
                let labels = [("tenant", tenant.name().as_str()), ("signal", signal.as_str())];
                ConstCounter::new(count(tenant.meter(), signal)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, level) in LEVELS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for tenant in &tenants {
                let labels = [("tenant", tenant.name().as_str())];
                let level = i64::try_from(level(tenant)).unwrap_or(i64::MAX);
                ConstGauge::new(level).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Time for which a tenant's requests waited for a place at the stores";
        let mut family = encoder.encode_descriptor("tenant_wait", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for tenant in &tenants {
            tenant.meter().waits().encode(family.encode_family(&[("tenant", tenant.name().as_str())])?)?;
        }
        Ok(())
    }
}

fn encode_requests(tenants: &[std::sync::Arc<Tenant>], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Requests of a tenant by signal, verdict and reason";
    let mut family = encoder.encode_descriptor("tenant_requests", help, None, MetricType::Counter)?;
    for (tenant, signal) in tenants.iter().flat_map(|tenant| Signal::ALL.map(|signal| (tenant, signal))) {
        for (verdict, reason, count) in tenant.meter().outcomes(signal) {
            let labels = [
                ("tenant", tenant.name().as_str()),
                ("signal", signal.as_str()),
                ("verdict", verdict.as_str()),
                ("reason", reason.map_or("", Reason::as_str)),
            ];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
