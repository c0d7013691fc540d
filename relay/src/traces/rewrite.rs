//! Requests, resources and scopes: opentelemetry/proto/collector/trace/v1/trace_service.proto, and what it holds down to
//! the spans.

use bytes::Bytes;
use telemetry_proto::protobuf::{Fields, Writer};

use super::attribute::{Attribute, Scalar};
use super::limits::{at_most, rewritten_bytes};
use super::pass::Pass;
use super::rules::is_reserved;
use super::shape::{self, ENTITY_REF, SCOPE};
use super::span::rewrite_span;
use super::{KeyClass, RemovedCounts, RewriteError, TraceLimits, TraceRules};
use crate::gate::Author;

/// The resource attribute that says whose spans these are.
pub const RUNNER_ATTRIBUTE: &str = "miren.runner.id";
const SERVICE_NAME: &str = "service.name";
const SERVICE_VERSION: &str = "service.version";

// ExportTraceServiceRequest
const RESOURCE_SPANS: u32 = 1;
// ResourceSpans
const RESOURCE: u32 = 1;
const SCOPE_SPANS: u32 = 2;
// Resource
const RESOURCE_ATTRIBUTES: u32 = 1;
const RESOURCE_DROPPED_ATTRIBUTES: u32 = 2;
const RESOURCE_ENTITIES: u32 = 3;
// ScopeSpans
const SCOPE_FIELD: u32 = 1;
const SPANS: u32 = 2;
// ResourceSpans and ScopeSpans
const SCHEMA_URL: u32 = 3;

/// A rewritten body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// An `ExportTraceServiceRequest` for the store; empty if it holds no spans.
    pub body: Bytes,
    /// The spans in it. None is ever removed.
    pub spans: u64,
    /// What of the sender's body is not in it.
    pub removed: RemovedCounts,
}

/// Rewrites a body of spans, so that it is filed under `runner` and holds nothing that `rules` do not allow. [The
/// table](super) says what becomes of each position.
///
/// It takes one allocation, of [`TraceLimits::max_rewritten_bytes`] at most. A megabyte takes one to two milliseconds, and
/// some ten if its sender means harm: a large body does not belong on a thread that others wait for.
///
/// # Errors
/// The first thing that is wrong with the body. Nothing of it may be passed on then.
pub fn rewrite(
    body: &[u8],
    rules: &TraceRules,
    author: &Author,
    limits: &TraceLimits,
) -> Result<Rewritten, RewriteError> {
    at_most(limits.max_body_bytes, body.len(), RewriteError::BodyBytes)?;
    let resources = Fields::of(body).flatten().filter(|field| field.number == RESOURCE_SPANS).count();
    at_most(limits.max_spans, resources, RewriteError::Resources)?;
    let out = Writer::with_capacity(rewritten_bytes(body.len(), resources));
    let mut request =
        Request { pass: Pass { rules, limits, out, removed: RemovedCounts::default() }, author, spans: 0 };
    for field in Fields::of(body) {
        let field = field?;
        match field.number {
            RESOURCE_SPANS => request.resource_spans(field.bytes()?)?,
            _ => request.pass.removed.add(KeyClass::Unknown),
        }
    }
    let Request { pass, spans, .. } = request;
    let mut body = pass.out.into_bytes();
    // As a rule it is far smaller than it might have become, and is held until the store has answered.
    body.shrink_to_fit();
    Ok(Rewritten { body: body.into(), spans: spans as u64, removed: pass.removed })
}

struct Request<'r> {
    pass: Pass<'r>,
    author: &'r Author,
    spans: usize,
}

impl Request<'_> {
    /// Read twice, since the resource comes first in the output but may come last in the input.
    fn resource_spans(&mut self, message: &[u8]) -> Result<(), RewriteError> {
        let spans_before = self.spans;
        let resource = self.resource(message)?;
        let resource_spans = self.pass.out.open(RESOURCE_SPANS);
        resource.write(self.author, &mut self.pass.out);
        for field in Fields::of(message) {
            let field = field?;
            if field.number == SCOPE_SPANS {
                self.scope_spans(field.bytes()?)?;
            }
        }
        if self.spans > spans_before {
            self.pass.out.close(resource_spans);
        } else {
            self.pass.out.abandon(resource_spans);
        }
        Ok(())
    }

    fn resource<'a>(&mut self, resource_spans: &'a [u8]) -> Result<Resource<'a>, RewriteError> {
        let mut resource = Resource::default();
        for field in Fields::of(resource_spans) {
            let field = field?;
            match field.number {
                RESOURCE => resource.read(field.bytes()?, self.author, &mut self.pass)?,
                SCOPE_SPANS => {}
                SCHEMA_URL => self.pass.remove_text(field, KeyClass::Resource)?,
                _ => self.pass.removed.add(KeyClass::Unknown),
            }
        }
        Ok(resource)
    }

    fn scope_spans(&mut self, message: &[u8]) -> Result<(), RewriteError> {
        let spans_before = self.spans;
        let scope_spans = self.pass.out.open(SCOPE_SPANS);
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                SCOPE_FIELD => {
                    let scope = field.bytes()?;
                    shape::check(scope, &SCOPE, self.pass.limits)?;
                    if !scope.is_empty() {
                        self.pass.removed.add(KeyClass::Scope);
                    }
                }
                SPANS => {
                    self.spans += 1;
                    at_most(self.pass.limits.max_spans, self.spans, RewriteError::Spans)?;
                    rewrite_span(field.bytes()?, SPANS, &mut self.pass)?;
                }
                SCHEMA_URL => self.pass.remove_text(field, KeyClass::Scope)?,
                _ => self.pass.removed.add(KeyClass::Unknown),
            }
        }
        if self.spans > spans_before {
            self.pass.out.close(scope_spans);
        } else {
            self.pass.out.abandon(scope_spans);
        }
        Ok(())
    }
}

/// What stays of a resource.
#[derive(Default)]
struct Resource<'a> {
    service_name: Option<&'a str>,
    service_version: Option<&'a str>,
    attributes: usize,
}

impl<'a> Resource<'a> {
    /// Merges what a further `Resource` message says into this one.
    fn read(&mut self, message: &'a [u8], author: &Author, pass: &mut Pass<'_>) -> Result<(), RewriteError> {
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                RESOURCE_ATTRIBUTES => {
                    self.attributes += 1;
                    at_most(pass.limits.max_attributes, self.attributes, RewriteError::Attributes)?;
                    let attribute = Attribute::read(field.bytes()?, pass)?;
                    self.take(attribute, author, pass);
                }
                RESOURCE_DROPPED_ATTRIBUTES => _ = field.varint()?,
                RESOURCE_ENTITIES => {
                    shape::check(field.bytes()?, &ENTITY_REF, pass.limits)?;
                    pass.removed.add(KeyClass::Resource);
                }
                _ => pass.removed.add(KeyClass::Unknown),
            }
        }
        Ok(())
    }

    fn take(&mut self, attribute: Attribute<'a>, author: &Author, pass: &mut Pass<'_>) {
        match (attribute.key, attribute.value) {
            (SERVICE_NAME, Some(Scalar::Text(text))) => {
                self.service_name = Some(pass.cut(text, pass.limits.max_value_bytes));
            }
            (SERVICE_VERSION, Some(Scalar::Text(text))) => {
                self.service_version = Some(pass.cut(text, pass.limits.max_value_bytes));
            }
            (SERVICE_NAME | SERVICE_VERSION, _) => pass.removed.add(KeyClass::ValueType),
            // An honest runner is not worth counting.
            (RUNNER_ATTRIBUTE, Some(Scalar::Text(claimed))) if claimed == author.label() => {}
            (key, _) if is_reserved(key) => pass.removed.add(KeyClass::Reserved),
            _ => pass.removed.add(KeyClass::Resource),
        }
    }

    fn write(&self, author: &Author, out: &mut Writer) {
        let resource = out.open(RESOURCE);
        let author = Some(author.label());
        let attributes =
            [(SERVICE_NAME, self.service_name), (SERVICE_VERSION, self.service_version), (RUNNER_ATTRIBUTE, author)];
        for (key, text) in attributes {
            if let Some(text) = text {
                Scalar::Text(text).write(RESOURCE_ATTRIBUTES, key, out);
            }
        }
        out.close(resource);
    }
}
