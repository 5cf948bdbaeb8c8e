//! Which server of a Redis Cluster holds a key.

use deadpool_redis::redis::{FromRedisValue, Value, from_redis_value};

/// The cluster divides all keys into so many slots.
const SLOTS: usize = 16_384;

/// The slot of a key: of its hash tag, if it has one.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % 16_384
}

/// CRC16 as XMODEM has it: what the cluster's specification names.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

/// Host and port.
pub(super) type Address = (String, u16);

/// Who holds which slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// All servers, replicas among them.
    servers: Vec<Address>,
    /// For each slot, the place of its holder among them; empty before the first look.
    holders: Vec<Option<usize>>,
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS`: for each range its first and last slot, its holder and the holder's replicas. A
    /// server that does not know its own name leaves the host out: it is the one that was asked.
    pub(super) fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut slots = Self { servers: Vec::new(), holders: vec![None; SLOTS] };
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [first, last, servers @ ..] = &parts[..] else { return None };
            let (first, last): (usize, usize) = (whole(first)?, whole(last)?);
            let places =
                servers.iter().map(|server| slots.place_of(address(server, asked)?)).collect::<Option<Vec<_>>>();
            let holder = places?.first().copied();
            slots.holders.get_mut(first..=last)?.fill(holder);
        }
        Some(slots)
    }

    fn place_of(&mut self, address: Address) -> Option<usize> {
        let known = self.servers.iter().position(|server| *server == address);
        known.or_else(|| {
            self.servers.push(address);
            Some(self.servers.len() - 1)
        })
    }

    /// Who holds this slot; `None` while nobody does.
    pub(super) fn holder(&self, slot: u16) -> Option<&Address> {
        self.holders.get(usize::from(slot)).copied().flatten().map(|place| &self.servers[place])
    }

    /// All servers, replicas among them.
    pub(super) fn servers(&self) -> &[Address] {
        &self.servers
    }

    /// The servers that hold slots.
    pub(super) fn holders(&self) -> Vec<&Address> {
        let mut places: Vec<_> = self.holders.iter().flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| &self.servers[place]).collect()
    }

    /// Whether each slot has a holder.
    pub(super) fn are_all_held(&self) -> bool {
        !self.holders.is_empty() && self.holders.iter().all(Option::is_some)
    }
}

fn whole<T: FromRedisValue>(value: &Value) -> Option<T> {
    from_redis_value(value.clone()).ok()
}

fn address(server: &Value, asked: &str) -> Option<Address> {
    let Value::Array(parts) = server else { return None };
    let host: Option<String> = whole(parts.first()?)?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    Some((host.unwrap_or_else(|| asked.to_owned()), whole(parts.get(1)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_that_redis_gives_it() {
        // The check value of the specification, and what CLUSTER KEYSLOT says.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [("foo", 12_182), ("{foo}:bar", 12_182), ("a{foo}{b}", 12_182), ("", 0), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("{foo"), crc16(b"{foo") % 16_384);
    }

    fn server(host: Option<&str>, port: i64) -> Value {
        let host = host.map_or(Value::Nil, |host| Value::BulkString(host.into()));
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into()), Value::Array(vec![])])
    }

    #[test]
    fn the_map_says_who_holds_what() {
        let range = |first, last, servers: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
        };
        let answer = Value::Array(vec![
            range(0, 99, vec![server(Some("a"), 1), server(Some("b"), 2)]),
            range(200, 16_383, vec![server(None, 3)]),
        ]);
        let slots = Slots::read(&answer, "asked").unwrap();
        let (a, b, asked) = (("a".to_owned(), 1), ("b".to_owned(), 2), ("asked".to_owned(), 3));
        assert_eq!((slots.holder(99), slots.holder(100), slots.holder(16_383)), (Some(&a), None, Some(&asked)));
        assert_eq!((slots.servers(), slots.holders()), (&[a.clone(), b, asked.clone()][..], vec![&a, &asked]));
        assert!(!slots.are_all_held() && !Slots::default().are_all_held());
        for bad in
            [Value::Nil, Value::Array(vec![range(0, 16_384, vec![server(None, 1)])]), Value::Array(vec![Value::Nil])]
        {
            assert_eq!(Slots::read(&bad, "asked"), None, "{bad:?}");
        }
    }
}
