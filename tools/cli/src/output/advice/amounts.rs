//! What limits in bytes, and RAM of machines, are called.

use quire_advise::{Amount, LimitSwap};

/// Its name, with a note where the program may be killed.
pub(super) fn amount_name(amount: Amount, swap: LimitSwap, may_be_killed: bool) -> String {
    let what = match amount {
        Amount::Limit(_) => "limit",
        Amount::Ram(_) => "memory",
    };
    let note = if may_be_killed { " (may be killed)" } else { "" };
    format!("{what}={},swap={}{note}", exact(amount.bytes()), swap.name())
}

/// A size that says each byte: two of them have two names.
fn exact(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes}B"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_each_byte() {
        let of = |bytes| amount_name(Amount::Limit(bytes), LimitSwap::Disk, false);
        for (bytes, name) in [
            (1, "1B"),
            (4097, "4097B"),
            (600 << 10, "600KiB"),
            ((1 << 20) + 1024, "1025KiB"),
            (64 << 20, "64MiB"),
            (3 << 30, "3GiB"),
        ] {
            assert_eq!(of(bytes), format!("limit={name},swap=disk"));
        }
        let machine = amount_name(Amount::Ram(1 << 40), LimitSwap::Zram, true);
        assert_eq!(machine, "memory=1024GiB,swap=zram-lz4 (may be killed)");
    }
}
