//! What a machine does between events: the timer, kswapd and khugepaged.

use super::Run;
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::thp::KhugepagedSetting;

/// The most steps that khugepaged catches up after a pause: soon nothing is left to collapse.
const MOST_STEPS: u32 = 1000;

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
    pub(super) fn tick(&mut self, time_ns: u64) {
        let second = time_ns / 1_000_000_000;
        let passed = second.saturating_sub(self.second);
        self.second = self.second.max(second);
        for _ in 0..passed.min(u64::from(Memory::<HostPlatform>::TICKS_TO_EMPTY) + 1) {
            self.machine.tick(&self.vcpus[0]);
        }
    }

    /// khugepaged keeps its pace in the recorded time.
    pub(super) fn khugepaged(&mut self, time_ns: u64) {
        self.time_ns = self.time_ns.max(time_ns);
        let Some(mut at) = self.khugepaged_at.filter(|&at| at <= time_ns) else { return };
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
