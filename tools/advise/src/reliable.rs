//! What recordings lack, and whether anything can rest on them.

use quire_arch::PAGE_SIZE;

/// A share of a limit that may be unknown.
const MOST_UNKNOWN: f64 = 0.03;
/// So much is never too much, in bytes.
const LEAST_UNKNOWN: u64 = 1 << 20;

/// A share of the page faults that may be lost, however much memory that is: of many faults most are of pages
/// that were there before.
const FEW_LOST: f64 = 0.001;

/// What recordings lack, by that in which it is most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lacking {
    /// Page faults that were lost, each of which stands for a page.
    pub(crate) faults: u64,
    /// Pages that came in without one.
    pub(crate) pages: u64,
    /// Anonymous memory that Linux had at the ends of processes, in bytes.
    pub(crate) anonymous: u64,
    /// Shared memory likewise.
    pub(crate) shared: u64,
}

/// Why nothing rests on recordings of a program that takes `bytes` of anonymous memory by so many `faults`,
/// and `charged` in all, if what they lack is too much.
pub(crate) fn unreliable([bytes, charged]: [f64; 2], faults: f64, lacking: Lacking) -> Option<String> {
    let Lacking { faults: lost, pages: unrecorded, anonymous: unexplained, shared } = lacking;
    let is_much = |missing: u64| missing > LEAST_UNKNOWN && missing as f64 > MOST_UNKNOWN * bytes;
    let is_many = |pages: u64| is_much(pages.saturating_mul(PAGE_SIZE)) && pages as f64 > FEW_LOST * faults;
    if is_many(lost) {
        return Some(format!("{lost} page faults were not recorded, too many for a program of this size"));
    }
    if is_many(unrecorded) {
        return Some(format!(
            "the kernel brought in {unrecorded} pages that are not in the recording, as for direct I/O or a \
             virtual machine"
        ));
    }
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    if is_much(unexplained) {
        let [missing, all] = [unexplained as f64, bytes].map(mebibytes);
        return Some(format!(
            "processes ended with {missing:.1} MiB more or less than recorded, of {all:.1} MiB in all"
        ));
    }
    (shared > LEAST_UNKNOWN && shared as f64 > MOST_UNKNOWN * charged).then(|| {
        let [missing, all] = [shared as f64, charged].map(mebibytes);
        format!(
            "a process ended with {missing:.1} MiB of shared memory that is not in the recording, beside \
             {all:.1} MiB in all: files in memory that were not filled through a mapping, or grew"
        )
    })
}

/// Why no limit can be told, if what is not known of it is too much.
pub(crate) fn unknown(
    bytes: u64,
    (kernel, is_measured): (f64, bool),
    unmapped: u64,
    unexplained: u64,
) -> Option<String> {
    let percent = |part: f64| (part * 100.0 / bytes.max(1) as f64).round();
    let most = MOST_UNKNOWN * bytes as f64;
    if unmapped > LEAST_UNKNOWN && unmapped as f64 > most {
        let percent = percent(unmapped as f64);
        return Some(format!(
            "{percent} % of it are files in memory that no process maps any more, and may be gone"
        ));
    }
    if unexplained > LEAST_UNKNOWN && unexplained as f64 > most {
        let percent = percent(unexplained as f64);
        return Some(format!("Linux's own figures differ from the replay's by {percent} % of it"));
    }
    (!is_measured && kernel > most).then(|| {
        let percent = percent(kernel);
        format!(
            "what the kernel keeps is {percent} % of it, and was not measured on this host (quire calibrate)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lost_faults_of_many_change_nothing() {
        let bytes = 100.0 * f64::from(1 << 20);
        let lost: fn(u64) -> Lacking = |faults| Lacking { faults, ..Lacking::default() };
        let unrecorded: fn(u64) -> Lacking = |pages| Lacking { pages, ..Lacking::default() };
        for of in [lost, unrecorded] {
            assert_eq!(unreliable([bytes; 2], 1e7, of(900)), None, "of ten million");
            assert!(unreliable([bytes; 2], 26_000.0, of(900)).is_some(), "3.5 MiB of 100");
            assert_eq!(unreliable([bytes; 2], 26_000.0, of(200)), None);
        }
        let anonymous = Lacking { anonymous: 4 << 20, ..Lacking::default() };
        assert!(unreliable([bytes, 1e12], 26_000.0, anonymous).is_some());
    }

    /// A file in memory that was filled by write(2) is charged, and no limit has room for it.
    #[test]
    fn shared_memory_that_is_not_recorded_is_held_against_all_that_is_charged() {
        const MIB: u64 = 1 << 20;
        let of = |shared| {
            let lacking = Lacking { shared: shared * MIB, ..Lacking::default() };
            unreliable([10.0, 100.0].map(|all| all * MIB as f64), 1e6, lacking)
        };
        assert!(of(4).is_some_and(|why| why.contains("4.0 MiB of shared memory")), "{:?}", of(4));
        assert_eq!((of(3), of(0)), (None, None));
    }
}
