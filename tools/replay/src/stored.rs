//! How figures of a replay are stored where a field by itself would take too much room, or has no form of its
//! own.

use quire_arch::Order;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An order as its number.
pub(super) mod order {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(order: &Order, to: S) -> Result<S::Ok, S::Error> {
        order.get().serialize(to)
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Order, D::Error> {
        let number = u8::deserialize(from)?;
        Order::new(number).ok_or_else(|| D::Error::custom(format_args!("there is no order {number}")))
    }
}

/// The differences of values, each to the one before: most are small. Values of replays are far below the
/// largest number: a difference of two that are not wraps around, and back again.
pub(super) fn differences(values: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut before = 0;
    values.map(|value| value.wrapping_sub(std::mem::replace(&mut before, value)) as i64).collect()
}

/// The values of such differences.
pub(super) fn values(differences: &[i64]) -> impl Iterator<Item = u64> {
    differences.iter().scan(0_u64, |value, &difference| {
        *value = value.wrapping_add(difference as u64);
        Some(*value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_give_the_values_again() {
        let all = [0, 7, 3, u64::MAX, 0, 1 << 63];
        assert_eq!(values(&differences(all.into_iter())).collect::<Vec<_>>(), all);
    }
}
