//! What a machine does between events: the timer, kswapd and khugepaged.

use super::Run;
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::thp::KhugepagedSetting;

/// The most steps that khugepaged catches up after a pause: soon nothing is left to collapse.
const MOST_STEPS: u32 = 1000;
pub(super) const SECOND_NS: u64 = 1_000_000_000;

impl Run<'_> {
    /// What kswapd, which sleeps until memory becomes short, does between two events.
    pub(super) fn reclaim_in_background(&mut self) {
        let memory = self.machine.memory();
        if memory.frames().background_target() == 0 {
            return;
        }
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
        }
    }

    /// khugepaged keeps its pace in the recorded time.
    #[inline]
    pub(super) fn khugepaged(&mut self, time_ns: u64) {
        self.time_ns = self.time_ns.max(time_ns);
        if let Some(at) = self.khugepaged_at
            && at <= time_ns
        {
            self.scan(at, time_ns);
        }
    }

    /// khugepaged's steps from `at` on.
    #[cold]
    fn scan(&mut self, mut at: u64, time_ns: u64) {
        let memory = self.machine.memory();
        let milliseconds = |setting| u64::from(memory.huge().khugepaged(setting)) * 1_000_000;
        self.look();
        for _ in 0..MOST_STEPS {
            let step = self.vcpus[0].run(|| memory.khugepaged_step());
            if let Some(life) = &mut self.life {
                life.collapsed(step.collapsed);
            }
            let pause = milliseconds(if step.out_of_memory {
                KhugepagedSetting::AllocSleepMillisecs
            } else {
                KhugepagedSetting::ScanSleepMillisecs
            });
            at = at.saturating_add(pause);
            if at > time_ns {
                break;
            }
        }
        self.khugepaged_at = Some(at.max(time_ns.saturating_add(1)));
        self.look();
    }
}
