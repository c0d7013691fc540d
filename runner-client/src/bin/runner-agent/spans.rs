//! How many spans an OTLP export request holds, and some of them, without decoding it.

use std::ops::Range;

use telemetry_proto::protobuf::{Fields, Writer};

/// Where the spans of an `ExportTraceServiceRequest` are: field 1 (`resource_spans`), field 2 (`scope_spans`), field 2
/// (`spans`).
const PATH: [u32; 3] = [1, 2, 2];

/// Counts the spans of an `ExportTraceServiceRequest`. `None`: it is no such message.
pub(crate) fn count(message: &[u8]) -> Option<u64> {
    descend(message, &PATH)
}

fn descend(message: &[u8], path: &[u32]) -> Option<u64> {
    let Some((wanted, rest)) = path.split_first() else { return Some(1) };
    let mut found = 0;
    for field in Fields::of(message) {
        let field = field.ok()?;
        if let Some(value) = field.bytes().ok().filter(|_| field.number == *wanted) {
            found += descend(value, rest)?;
        }
    }
    Some(found)
}

/// The request with these of its spans only, counted from 0, under their resources and scopes. `None`: it is no such message.
pub(crate) fn part(message: &[u8], wanted: Range<u64>) -> Option<Vec<u8>> {
    let mut part = Part { wanted, next: 0, out: Writer::with_capacity(message.len()) };
    part.copy(message, &PATH)?;
    Some(part.out.into_bytes())
}

/// A request that is copied in part.
struct Part {
    wanted: Range<u64>,
    /// The number of the next span.
    next: u64,
    out: Writer,
}

impl Part {
    /// Copies the fields of a message but for spans that are not wanted. Returns how many spans it copied.
    fn copy(&mut self, message: &[u8], path: &[u32]) -> Option<u64> {
        let (first, rest) = path.split_first()?;
        let mut copied = 0;
        for field in Fields::of(message) {
            let field = field.ok()?;
            let Some(value) = field.bytes().ok().filter(|_| field.number == *first) else {
                field.write(&mut self.out);
                continue;
            };
            if rest.is_empty() {
                if self.wanted.contains(&self.next) {
                    field.write(&mut self.out);
                    copied += 1;
                }
                self.next += 1;
                continue;
            }
            let open = self.out.open(field.number);
            match self.copy(value, rest)? {
                0 => self.out.abandon(open),
                spans => {
                    self.out.close(open);
                    copied += spans;
                }
            }
        }
        Some(copied)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use prost::Message as _;

    use super::{count, part};

    #[test]
    fn spans_are_counted_and_garbage_is_told() {
        let spans =
            |n| ScopeSpans { spans: vec![Span { name: "s".into(), ..Span::default() }; n], ..Default::default() };
        let resource =
            |n: &[usize]| ResourceSpans { scope_spans: n.iter().map(|n| spans(*n)).collect(), ..Default::default() };
        let request = ExportTraceServiceRequest { resource_spans: vec![resource(&[2, 3]), resource(&[1])] };
        let bytes = request.encode_to_vec();
        assert_eq!(count(&bytes), Some(6));
        assert_eq!(count(b""), Some(0));
        assert_eq!(count(b"{\"resourceSpans\":[]}"), None);
        assert_eq!(count(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn a_part_holds_the_spans_that_are_wanted_under_what_they_were_under() {
        use opentelemetry_proto::tonic::resource::v1::Resource;
        let mut number = 0;
        let mut scope = |spans: usize| {
            let name = |n: usize| Span { name: n.to_string(), trace_id: vec![7; 16], ..Span::default() };
            number += spans;
            let spans = (number - spans..number).map(name).collect();
            ScopeSpans { spans, schema_url: "s".repeat(200), ..Default::default() }
        };
        let mut of = |count: u32, spans: &[usize]| ResourceSpans {
            resource: Some(Resource { dropped_attributes_count: count, ..Default::default() }),
            scope_spans: spans.iter().map(|n| scope(*n)).collect(),
            ..Default::default()
        };
        let whole = ExportTraceServiceRequest { resource_spans: vec![of(1, &[2, 3]), of(2, &[4]), of(3, &[0, 1])] };
        let bytes = whole.encode_to_vec();
        assert_eq!(count(&bytes), Some(10));
        for (from, to) in [(0, 10), (0, 1), (1, 2), (0, 5), (4, 7), (5, 9), (9, 10), (0, 0), (3, 99)] {
            let mut expected = whole.clone();
            for resource in &mut expected.resource_spans {
                for scope in &mut resource.scope_spans {
                    scope.spans.retain(|span| (from..to).contains(&span.name.parse::<u64>().unwrap()));
                }
                resource.scope_spans.retain(|scope| !scope.spans.is_empty());
            }
            expected.resource_spans.retain(|resource| !resource.scope_spans.is_empty());
            let part = part(&bytes, from..to).unwrap();
            assert_eq!(ExportTraceServiceRequest::decode(&part[..]).unwrap(), expected, "{from}..{to}");
        }
        assert_eq!(part(&bytes[..bytes.len() - 1], 0..1), None);
    }
}
