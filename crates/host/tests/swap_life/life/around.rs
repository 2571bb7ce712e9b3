//! What changes around the programs of a life: sizes of folios, memcgs, devices and their errors.

use super::{GROUPS, Life};
use crate::common::*;
use crate::model::{ARENA, BASE};
use quire_frame::{FailAim, FailClass, FailPlan};

impl Life<'_> {
    pub(super) fn change_folios(&mut self, at: usize) {
        match self.random.below(4) {
            0 => {
                let orders = [0b100, 0b1_0000, 0b10_0000_0000, 0b10_0001_0100, 0];
                let bits = self.random.pick(&orders);
                let word = self.random.pick(&[SizeEnabled::Always, SizeEnabled::Madvise]);
                self.machine.memory().spaces().huge().change(|policy| {
                    let none = policy.with_sizes(OrderSet::from_bits(!0), SizeEnabled::Never);
                    none.with_sizes(OrderSet::from_bits(bits), word)
                });
            }
            1 => {
                let advice = self.random.pick(&[Advice::HugePage, Advice::NoHugePage]);
                self.advise(at, advice);
            }
            2 => {
                let block = self.random.below(ARENA * PAGE / MIB2);
                let result =
                    self.minds[at].space.madvise(VirtAddr(BASE + block * MIB2), MIB2, Advice::Collapse);
                match result {
                    Ok(()) => self.count("collapsed"),
                    Err(error) => self.note("not collapsed", error),
                }
            }
            _ => drop(self.machine.memory().khugepaged_step()),
        }
    }

    pub(super) fn change_memcgs(&mut self, at: usize) {
        let memcgs = self.machine.memory().memcgs();
        let action = self.random.below(8);
        if action == 0 && self.memcgs.len() < GROUPS {
            let parent = self.memcgs.last().copied().filter(|_| self.random.chance(30));
            self.next_value += 1;
            let name = format!("g{}", self.next_value);
            match memcgs.lifecycle().create(parent.unwrap_or(MemcgId::ROOT), &name) {
                Ok(memcg) => self.memcgs.push(memcg),
                Err(_) => self.count("no memcg"),
            }
            return;
        }
        if self.memcgs.is_empty() {
            return;
        }
        let nth = self.random.below(self.memcgs.len() as u64) as usize;
        let memcg = self.memcgs[nth];
        let pages = self.random.below(1500) * PAGE;
        let limited = self.random.chance(70);
        let set = |limit, bytes: u64| {
            let _ = memcgs.files().set(memcg, limit, limited.then_some(bytes)).expect("the memcg is there");
        };
        match action {
            1 => set(Limit::Max, pages + 300 * PAGE),
            2 => set(Limit::High, pages + 800 * PAGE),
            3 => set(Limit::Low, pages / 4),
            4 => set(Limit::SwapMax, pages + 500 * PAGE),
            5 => {
                self.machine.memory().reclaim(memcg, 1 + pages / PAGE / 8);
            }
            6 => {
                let memcg = if self.random.chance(70) { memcg } else { MemcgId::ROOT };
                self.minds[at].space.set_memcg(memcg).expect("the memcg is there");
                self.count("moved to a memcg");
            }
            7 if memcgs.lifecycle().remove(memcg).is_ok() => {
                self.memcgs.swap_remove(nth);
                self.count("memcg removed");
            }
            _ => {}
        }
    }

    pub(super) fn change_devices(&mut self) {
        match self.devices.change(self.machine, &mut self.random) {
            Ok(what) | Err(what) => self.count(what),
        }
    }

    pub(super) fn change_luck(&mut self) {
        self.failing = !self.failing && self.random.chance(70);
        let plan = if self.failing {
            let class = self.random.pick(&[FailClass::DeviceRead, FailClass::DeviceWrite]);
            FailPlan::seeded(self.random.next(), self.habits.errors).at(FailAim::Class(class))
        } else {
            FailPlan::OFF
        };
        self.machine.memory().frames().fail_points().set(plan);
    }
}
