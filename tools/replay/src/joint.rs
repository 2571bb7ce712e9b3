//! How much anonymous and shared memory several processes have mapped, or one has twice, over the recorded
//! time.
//!
//! A recorder that makes uses page faults by paging out cannot page out such memory: Linux leaves it. So its
//! later uses are in no recording. What it is for a moment only, as between a fork and an exec, is of no
//! matter.

use crate::space::HostSpace;
use quire_arch::PAGE_SHIFT;
use quire_mm::space::VmFlags;

/// So often it is counted.
const LOOKS: u64 = 64;
/// Pages and mappings that are looked at for it. From then on it is counted half as often after each time.
const FREE_STEPS: u64 = 1 << 26;
/// A count that comes so many pauses after the last one stands for more than a moment: nothing happened for
/// half a pause before it.
const LATE: (u64, u64) = (3, 2);

/// Follows it.
#[derive(Debug)]
pub(super) struct Joint {
    since_ns: u64,
    /// The time between two counts.
    pause_ns: u64,
    steps: u64,
    /// Of the counts that saw most, the bytes: what one alone saw may have been for a moment.
    most: u64,
    second: u64,
}

impl Joint {
    /// For a recording that takes so long.
    pub(super) fn new(all_ns: u64) -> Self {
        Self { since_ns: 0, pause_ns: all_ns / LOOKS, steps: 0, most: 0, second: 0 }
    }

    /// Whether it is to be counted before an event at `time_ns`.
    pub(super) fn is_due(&self, time_ns: u64) -> bool {
        time_ns.saturating_sub(self.since_ns) > self.pause_ns
    }

    /// Before an event at `time_ns` several processes have so much mapped.
    pub(super) fn count(&mut self, time_ns: u64, Mapped { bytes, steps }: Mapped) {
        let late = self.pause_ns.saturating_mul(LATE.0) / LATE.1;
        // The late one is as good as two.
        let seen = if time_ns.saturating_sub(self.since_ns) > late { 2 } else { 1 };
        for _ in 0..seen {
            self.second = self.second.max(bytes.min(self.most));
            self.most = self.most.max(bytes);
        }
        self.steps = self.steps.saturating_add(steps);
        if self.steps > FREE_STEPS {
            self.pause_ns = self.pause_ns.saturating_mul(2);
        }
        self.since_ns = self.since_ns.max(time_ns);
    }

    /// The most that it was for longer than a moment.
    pub(super) fn finish(self) -> u64 {
        self.second
    }
}

/// What is mapped by several, and what was looked at to know that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mapped {
    bytes: u64,
    steps: u64,
}

impl Mapped {
    pub(super) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, steps: self.steps + other.steps }
    }
}

/// What of the anonymous and shared memory of `space` has another mapping: of each page the part that is
/// this space's, so that the sum over all spaces has each page once. `is_shared`: whether the file of this
/// number is shared memory. All that is mapped of one that `stays` counts.
pub(super) fn part_of(
    space: &HostSpace<'_>,
    is_shared: impl Fn(u64) -> bool,
    stays: impl Fn(u64) -> bool,
) -> Mapped {
    let (mut bytes, mut steps) = (0, 0);
    space.mappings().for_each_figures(|figures| {
        steps += 1 + (figures.resident >> PAGE_SHIFT);
        let is_of_file = figures.mapping.file.is_some_and(|number| !is_shared(number));
        if figures.mapping.flags.contains(VmFlags::SHARED) && is_of_file {
            return;
        }
        bytes += match figures.mapping.file.filter(|_| is_of_file) {
            None if figures.mapping.file.is_some_and(&stays) => figures.share,
            None => figures.share.saturating_sub(figures.private_clean + figures.private_dirty),
            // What was written is anonymous, and the pages of the file are clean.
            Some(_) => figures.share_dirty.saturating_sub(figures.private_dirty).min(figures.anonymous),
        };
    });
    Mapped { bytes, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_for_a_moment_is_left_out() {
        let of_steps = |steps, counts: &[(u64, u64)]| {
            let mut joint = Joint::new(6400);
            counts.iter().for_each(|&(time_ns, bytes)| joint.count(time_ns, Mapped { bytes, steps }));
            joint.finish()
        };
        let of = |counts: &[(u64, u64)]| of_steps(1, counts);
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(100, 0), (250, 900), (380, 0)]), 0, "one count");
        assert_eq!(of(&[(100, 0), (251, 900), (380, 0)]), 900, "it was so for half a pause");
        assert_eq!(of(&[(100, 30), (201, 900), (302, 800), (403, 30)]), 800, "both together");
        assert_eq!(of(&[(6400, 30), (7, 0)]), 30, "claims of times that go back");
        // Of many spaces there are few counts, each of which stands for long.
        let rare = |end| [(200, 0), (402, 0), (end, 900), (6400, 0)];
        let of_many = [702, 703].map(|end| of_steps(FREE_STEPS, &rare(end)));
        assert_eq!(of_many, [0, 900], "one of few counts");
    }

    #[test]
    fn it_is_counted_a_few_times() {
        let due = |steps| -> Vec<u64> {
            let mut joint = Joint::new(6400);
            let mut count = |&time_ns: &u64| {
                let due = joint.is_due(time_ns);
                if due {
                    joint.count(time_ns, Mapped { bytes: 0, steps });
                }
                due
            };
            (0..6400).filter(|time_ns| count(time_ns)).collect()
        };
        let (few, many) = (due(1), due(FREE_STEPS));
        assert!(few.len() == 63 && few[0] == 101, "{few:?}");
        assert!((4..8).contains(&many.len()), "of many spaces with much each: {many:?}");
        assert!(!Joint::new(0).is_due(0));
    }
}
