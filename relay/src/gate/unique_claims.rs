//! Claims whose names are unique.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use telemetry_proto::claims::Claims;

/// Claims that were read from an object in which no name occurs twice (RFC 7519 section 4 lets a parser refuse those).
///
/// [`Claims`] itself refuses a second `exp`, but keeps names that it does not know in a map, where the last one wins. The
/// runner's ID is among those, and two readers of one token must never see two runners.
pub(super) struct UniqueClaims(pub(super) Claims);

impl<'de> Deserialize<'de> for UniqueClaims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = deserializer.deserialize_map(UniqueNames)?;
        Claims::deserialize(Value::Object(object)).map(Self).map_err(D::Error::custom)
    }
}

struct UniqueNames;

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object without repeated names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = access.next_entry::<String, Value>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a claim is repeated"));
            }
        }
        Ok(object)
    }
}
