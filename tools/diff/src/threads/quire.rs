//! Quire: each thread is a vCPU of a paranoid machine.

use super::Side;
use super::crew::{Hands, World};
use super::history::{Access, ChildPage, Outcome, Refusal};
use super::program::{Call, Window};
use crate::quire::HostSpace;
use quire_arch::VirtAddr;
use quire_host::{AccessError, Guest, HostConfig, Machine, Vcpu};
use quire_mm::abi::{self, CallNumber, FaultIn, NoFiles};
use quire_mm::{InUse, MemoryConfig, space::FaultError};

/// Enough for a window, its tables and a child of each thread. The audit after each program goes through all
/// of it.
const RAM: u64 = 2 << 20;

/// A machine for one crew.
#[derive(Debug)]
pub(super) struct QuireWorld {
    machine: Machine,
    /// What is in use while there are no programs.
    idle: InUse,
}

impl QuireWorld {
    pub(super) fn new(threads: usize) -> Self {
        // Audited after each program, with the finding as a result.
        let host = HostConfig { audit_at_end: false, ..HostConfig::with_ram(RAM).cpus(threads).paranoid() };
        let memory = MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() };
        let machine = Machine::new(&host, memory).expect("a small machine can be built");
        // The first space makes what stays for the next ones.
        drop(machine.memory().create_space().expect("there is memory for a space"));
        let idle = machine.memory().in_use();
        Self { machine, idle }
    }
}

impl World for QuireWorld {
    const SIDE: Side = Side::Quire;

    type Seat<'w> = Vcpu;
    type Memory<'w> = HostSpace<'w>;

    fn seat(&self, number: usize) -> Vcpu {
        // All but the first yield at times, in addition to the scheduler's preemption.
        quire_host::give_way(number as u64 * 0x9e37_79b9);
        self.machine.vcpu(number).expect("each thread has a vCPU")
    }

    fn open(&self) -> HostSpace<'_> {
        self.machine.memory().create_space().expect("there is memory for a space")
    }

    fn with_hands(cpu: &Vcpu, space: &HostSpace<'_>, work: &mut dyn FnMut(&mut dyn Hands)) {
        // In guest mode all the time, as a program on a real CPU is: what its TLB holds stays until it is
        // flushed.
        cpu.program(space).inside(|guest| work(&mut OnCpu { cpu, space, guest }));
    }

    fn close(&self, space: HostSpace<'_>) -> Vec<String> {
        let mut wrong: Vec<String> = self.machine.audit().iter().map(ToString::to_string).collect();
        drop(space);
        wrong.extend(self.machine.audit().iter().map(|finding| format!("after the exit: {finding}")));
        let left = self.machine.memory().in_use();
        if left != self.idle {
            wrong.push(format!("after the exit there is {left:?}, not {:?}", self.idle));
        }
        wrong
    }

    fn abandon(self) {
        // Its end could hang on a lock that will never be released.
        std::mem::forget(self);
    }
}

/// A thread in guest mode.
struct OnCpu<'h, 'g, 'm> {
    cpu: &'h Vcpu,
    space: &'h HostSpace<'m>,
    guest: &'h mut Guest<'g, HostSpace<'m>>,
}

/// The outcome of an access.
fn access<T>(result: Result<T, AccessError<FaultError>>) -> Result<Access<T>, String> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(AccessError::Fault(FaultError::NotMapped)) => Ok(Err(Refusal::NotMapped)),
        Err(AccessError::Fault(FaultError::AccessDenied)) => Ok(Err(Refusal::Denied)),
        Err(other) => Err(other.to_string()),
    }
}

impl Hands for OnCpu<'_, '_, '_> {
    fn read(&mut self, addr: VirtAddr) -> Result<Access<u64>, String> {
        access(self.guest.read_u64(addr))
    }

    fn write(&mut self, addr: VirtAddr, word: u64) -> Result<Access<()>, String> {
        access(self.guest.write_u64(addr, word))
    }

    fn call(&mut self, call: Call) -> Option<i64> {
        let number = CallNumber::from_raw(call.number);
        abi::call(self.space, number, call.args, &NoFiles, &FaultIn(self.space)).raw()
    }

    fn fork(&mut self, window: Window, forked: &mut dyn FnMut()) -> Outcome {
        let child = self.space.fork();
        forked();
        let child = match child {
            Ok(child) => child,
            Err(error) => return Outcome::Failed(i64::from(error.errno().0)),
        };
        let program = self.cpu.program(&child);
        let page = |number| {
            let addr = window.addr(number);
            Ok(ChildPage {
                read: access(program.read_u64(addr))?.map(|word| window.decode(word)),
                write: access(program.write_u64(addr, window.word(Window::CHILD)))?,
            })
        };
        Outcome::of_child((0..window.pages).map(page))
    }

    fn idle(&mut self) {
        self.guest.poll();
        core::hint::spin_loop();
    }
}
