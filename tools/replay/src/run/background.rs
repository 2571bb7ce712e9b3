//! What a machine does between events: the timer, kswapd and khugepaged.

use super::RunningReplay;
use super::work::looks_at;
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::thp::{KhugepagedSetting, KhugepagedStep};
use std::time::Duration;

pub(super) const SECOND_NS: u64 = 1_000_000_000;

/// Pages that khugepaged may scan at first: 16 384 steps of Linux's default.
const FIRST_SCANNED: i64 = 1 << 26;
/// And what each event adds: a step.
const SCANNED_OF_EVENT: u64 = 1 << 12;
/// What a step costs beside the pages that it scans, and what it costs to find no memory for a block.
const PAGES_OF_STEP: u64 = 1 << 6;
const PAGES_OF_FAILURE: u64 = 1 << 14;

/// khugepaged's turns. A recording can claim any pause between its events, and any pace: what is scanned in
/// them is counted.
#[derive(Debug)]
pub(super) struct Khugepaged {
    /// The recorded time of the next step.
    at: u64,
    /// Pages that it may scan. What a step scans is known when it is made, so that it can owe some.
    left: i64,
    /// Events up to this one have added theirs.
    earned: u64,
}

impl Khugepaged {
    /// It scans first after so much recorded time.
    pub(super) fn new(first: Duration) -> Self {
        Self { at: u64::try_from(first.as_nanos()).unwrap_or(u64::MAX), left: FIRST_SCANNED, earned: 0 }
    }

    /// What events before number `event` add.
    fn earn(&mut self, event: u64) {
        let new = event.saturating_sub(std::mem::replace(&mut self.earned, event));
        self.left = self.left.saturating_add_unsigned(new.saturating_mul(SCANNED_OF_EVENT));
    }

    /// A step was made, after which it sleeps so long.
    fn stepped(&mut self, step: &KhugepagedStep, pause: u64) {
        let failed = if step.out_of_memory { PAGES_OF_FAILURE } else { 0 };
        self.left = self.left.saturating_sub_unsigned(step.scanned.saturating_add(PAGES_OF_STEP + failed));
        self.at = self.at.saturating_add(pause);
    }

    /// Steps up to `time_ns` are passed over. It keeps its pace.
    fn rest(&mut self, time_ns: u64, pause: u64) {
        let passed = time_ns.saturating_sub(self.at).checked_div(pause).unwrap_or(0);
        let next = self.at.saturating_add((passed + 1).saturating_mul(pause));
        if self.at <= time_ns {
            self.at = next.max(time_ns.saturating_add(1));
        }
    }
}

impl RunningReplay<'_> {
    /// What kswapd, which sleeps until memory becomes short, does between two events.
    pub(super) fn reclaim_in_background(&mut self) {
        let memory = self.machine.memory();
        if memory.frames().watermarks().background_target() == 0 {
            return;
        }
        self.drop_unused_files();
        self.vcpus[0].run(|| {
            loop {
                let step = memory.kswapd_step();
                if step.missing == 0 || step.freed == 0 {
                    break;
                }
            }
        });
        self.swap.note(memory);
    }

    /// The timer ticks once a second of the recorded time. After a longer pause it need not catch up all
    /// ticks: soon nothing is held back any more.
    #[inline]
    pub(super) fn tick(&mut self, time_ns: u64) {
        if time_ns >= self.ticks_at {
            self.tick_now(time_ns);
        }
    }

    #[cold]
    fn tick_now(&mut self, time_ns: u64) {
        let before = self.ticks_at / SECOND_NS;
        let passed = time_ns / SECOND_NS + 1 - before;
        self.ticks_at = (time_ns / SECOND_NS + 1).saturating_mul(SECOND_NS);
        for _ in 0..passed.min(u64::from(Memory::<HostPlatform>::TICKS_TO_EMPTY) + 1) {
            self.machine.tick(&self.vcpus[0]);
            // What kswapd does between two ticks, also where nothing is short.
            self.vcpus[0].run(|| self.machine.memory().frames().pcp().give_back_in_portions());
        }
    }

    /// khugepaged keeps its pace in the recorded time.
    #[inline]
    pub(super) fn khugepaged(&mut self, time_ns: u64) {
        self.time_ns = self.time_ns.max(time_ns);
        if let Some(khugepaged) = self.khugepaged.take_if(|khugepaged| khugepaged.at <= time_ns) {
            self.khugepaged = Some(self.scan(khugepaged, time_ns));
        }
    }

    /// khugepaged's steps up to `time_ns`. Until then nothing changes any more, so it rests when a whole
    /// round has found nothing.
    #[cold]
    fn scan(&mut self, mut khugepaged: Khugepaged, time_ns: u64) -> Khugepaged {
        let memory = self.machine.memory();
        let milliseconds = |setting| u64::from(memory.huge().khugepaged(setting)) * 1_000_000;
        khugepaged.earn(self.event);
        self.look();
        // The first round that ends may have begun before.
        let (mut rounds, mut pause) = (0, milliseconds(KhugepagedSetting::ScanSleepMillisecs));
        while khugepaged.at <= time_ns && khugepaged.left > 0 && rounds < 2 {
            let step = self.vcpus[0].run(|| memory.khugepaged_step());
            looks_at(1);
            if let Some(life) = &mut self.life {
                life.collapsed(step.collapsed);
            }
            pause = milliseconds(if step.out_of_memory {
                KhugepagedSetting::AllocSleepMillisecs
            } else {
                KhugepagedSetting::ScanSleepMillisecs
            });
            khugepaged.stepped(&step, pause);
            rounds = if step.collapsed > 0 { 0 } else { rounds + step.rounds };
            if step.scanned == 0 {
                break;
            }
        }
        khugepaged.rest(time_ns, pause);
        self.look();
        khugepaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: KhugepagedStep =
        KhugepagedStep { scanned: 4096, collapsed: 0, rounds: 0, out_of_memory: false };

    /// The steps that are made at so many events, each of which comes long after the one before.
    fn steps(events: u64, step: KhugepagedStep) -> u64 {
        let mut khugepaged = Khugepaged::new(Duration::ZERO);
        let mut steps = 0;
        for event in 0..events {
            khugepaged.earn(event);
            let time_ns = (event + 1) * 1_000_000 * SECOND_NS;
            while khugepaged.at <= time_ns && khugepaged.left > 0 {
                khugepaged.stepped(&step, SECOND_NS);
                steps += 1;
            }
            khugepaged.rest(time_ns, SECOND_NS);
            assert_eq!(khugepaged.at, time_ns + SECOND_NS, "it keeps its pace");
        }
        steps
    }

    #[test]
    fn what_khugepaged_scans_in_pauses_is_paid_for_by_events() {
        let first = (FIRST_SCANNED / 4096) as u64;
        for events in [100, 10_000] {
            let steps = steps(events, DEFAULT);
            assert!((first / 2..=first + events).contains(&steps), "{steps} steps in {events} pauses");
        }
        // Whatever a step is, and whether it finds memory.
        assert_eq!(steps(1000, KhugepagedStep { scanned: 1 << 32, ..DEFAULT }), 1);
        assert!(steps(1000, KhugepagedStep { out_of_memory: true, ..DEFAULT }) < first / 2);
        assert!(steps(1000, KhugepagedStep { scanned: 1, ..DEFAULT }) < 128 * first);
    }
}
