//! How many spans an OTLP export request holds, without decoding it.

use telemetry_proto::protobuf::Fields;

/// Counts the spans of an `ExportTraceServiceRequest`: field 1 (`resource_spans`), field 2 (`scope_spans`), field 2
/// (`spans`). `None`: it is no such message.
pub(crate) fn count(message: &[u8]) -> Option<u64> {
    const PATH: [u32; 3] = [1, 2, 2];
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

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use prost::Message as _;

    use super::count;

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
}
