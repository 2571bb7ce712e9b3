//! Running a model under many schedules.

pub(crate) use crate::common::{
    DENIED, HostProgram, HostSpace, MIB2, MOVE, Machine, NONE, NOT_MAPPED, PAGE, READ, RW, Setup,
    anonymous_frames, assert_audit, create_space, device_reads, device_writes, in_use, map_at, page, setting,
    swap_on_ram,
};
pub(crate) use quire_arch::*;
pub(crate) use quire_host::*;
pub(crate) use quire_mm::frame::*;
pub(crate) use quire_mm::memcg::*;
pub(crate) use quire_mm::space::*;
pub(crate) use quire_mm::swap::*;
pub(crate) use quire_mm::thp::*;
use quire_sync::atomic::as_one_step;
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::thread::Scope;
use shuttle::{Config, MaxSteps, Runner};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Schedules of each model, three with few preemptions to each one with many, unless `QUIRE_SCHEDULES` says
/// otherwise.
const SCHEDULES: u64 = 1500;
/// Schedules of each model that are run twice.
const REPLAYED: usize = 10;
/// Preemptions, plus one, in a schedule of the kind that has few: most bugs need no more, and this many
/// places for them are found far more often than by chance.
const DEPTH: usize = 4;
/// A model takes some thousand steps, and one that swaps in 512 pages one by one 200 000; one that takes this
/// many waits for what never comes.
const STEPS: usize = 500_000;
/// The stack of a thread: debug builds of the memory manager need more than shuttle's default.
const STACK: usize = 512 << 10;

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    // What the other threads do after one has failed does not matter.
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    config
}

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    /// Prints at a failure how far the run had come.
    struct Begun(Arc<AtomicUsize>);
    impl Drop for Begun {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("schedule {} of its kind failed", self.0.load(Ordering::Relaxed));
            }
        }
    }
    let begun = Begun(Arc::default());
    let count = Arc::clone(&begun.0);
    Runner::new(scheduler, config()).run(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
}

/// Runs `model` under schedules that follow from its name; or under the one schedule that `QUIRE_SCHEDULE`
/// holds, as a failure printed it.
pub(crate) fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    check_seeded(SCHEDULES, seed_of(&model), model);
}

/// The seed of a model: FNV-1a of the path of the test that its closure is in.
pub(crate) fn seed_of<M>(_: &M) -> u64 {
    let name = std::any::type_name::<M>().trim_end_matches("::{{closure}}");
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Checks a model of a small machine of `cpus` and a space in it.
pub(crate) fn check_space(cpus: usize, model: impl SpaceModel) {
    let setup = Setup::mib(1).cpus(cpus);
    check_seeded(SCHEDULES, seed_of(&model), move || {
        with_spaces(&setup, |machine, [space]| model(machine, space));
    });
}

/// What CPUs do with a machine and a space in it.
pub(crate) trait SpaceModel: Fn(&Machine, &HostSpace<'_>) + Send + Sync + Clone + 'static {}

impl<M: Fn(&Machine, &HostSpace<'_>) + Send + Sync + Clone + 'static> SpaceModel for M {}

/// As [`check`], under so many schedules that follow from `seed`.
pub(crate) fn check_seeded(schedules: u64, seed: u64, model: impl Fn() + Send + Sync + Clone + 'static) {
    if let Ok(schedule) = std::env::var("QUIRE_SCHEDULE") {
        let mut replay = ReplayScheduler::new_from_encoded(&schedule);
        // A schedule ends where the failure was.
        replay.set_allow_incomplete();
        run(replay, model);
        return;
    }
    // First, whether schedules replay at all: these run twice and must offer the same choices.
    let twice = RandomScheduler::new_from_seed(seed, REPLAYED);
    run(UncontrolledNondeterminismCheckScheduler::new(twice), model.clone());
    let all = setting("QUIRE_SCHEDULES", schedules) as usize;
    let many = all.div_ceil(4);
    println!("seed {seed}: {} schedules with few preemptions, {many} with many", all - many);
    run(PctScheduler::new_from_seed(seed, DEPTH, all - many), model.clone());
    run(RandomScheduler::new_from_seed(seed, many), model);
}

/// A small machine in paranoid mode, built in one step.
pub(crate) fn machine(cpus: usize) -> Machine {
    machine_with(HostConfig::with_ram(1 << 20).cpus(cpus))
}

/// A machine by a configuration, in paranoid mode, built in one step.
pub(crate) fn machine_with(host: HostConfig) -> Machine {
    as_one_step(|| Setup::of(host.paranoid()).build())
}

/// Audits the machine in one step.
pub(crate) fn audit(machine: &Machine) {
    as_one_step(|| assert_audit(machine));
}

/// Runs `model` with several spaces on a machine. When it is done with them everything must be accounted for,
/// and after the spaces' exit everything must be gone.
pub(crate) fn with_spaces<const N: usize>(setup: &Setup, model: impl FnOnce(&Machine, &[HostSpace<'_>; N])) {
    let machine = as_one_step(|| setup.build());
    let before = as_one_step(|| in_use(&machine));
    // A space whose model has failed stays: its exit may find what the failure left, and panic once more.
    let spaces = ManuallyDrop::new(as_one_step(|| [(); N].map(|()| create_space(&machine))));
    model(&machine, &spaces);
    audit(&machine);
    as_one_step(|| drop(ManuallyDrop::into_inner(spaces)));
    audit(&machine);
    as_one_step(|| {
        let swap = machine.memory().swap();
        assert_eq!(swap.devices().free_slots(), swap.devices().total_slots(), "a slot is lost");
        let off = swap_off(&machine);
        assert!(matches!(off, Ok(()) | Err(SwapOffError::NotOn)), "{off:?}");
        assert_eq!(in_use(&machine), before, "a page, a table or an object is lost");
    });
    audit(&machine);
    as_one_step(|| drop(machine));
}

/// Removes the swap device.
pub(crate) fn swap_off(machine: &Machine) -> Result<(), SwapOffError> {
    machine.memory().swapoff(DeviceId::new(0).expect("the first one"), || true)
}

/// Maps `pages` pages at `addr` in one step.
pub(crate) fn map(space: &HostSpace<'_>, addr: VirtAddr, pages: u64) {
    as_one_step(|| map_at(space, addr.0, pages * PAGE, RW));
}

/// Runs `action` as CPU `number`, with a program in `space`.
pub(crate) fn on_cpu<'m, R>(
    machine: &Machine,
    number: usize,
    space: &HostSpace<'m>,
    action: impl FnOnce(&HostProgram<'_, 'm>) -> R,
) -> R {
    let cpu = machine.vcpu(number).expect("each CPU has one thread");
    cpu.run(|| action(&cpu.program(space)))
}

/// Runs `action` as CPU `number`.
pub(crate) fn as_cpu<R>(machine: &Machine, number: usize, action: impl FnOnce() -> R) -> R {
    machine.vcpu(number).expect("each CPU has one thread").run(action)
}

/// Starts a thread that runs `action` as CPU `number`, with a program in `space`.
pub(crate) fn spawn_on<'s, 'm>(
    scope: &'s Scope<'s, '_>,
    machine: &'s Machine,
    number: usize,
    space: &'s HostSpace<'m>,
    action: impl FnOnce(&HostProgram<'_, 'm>) + Send + 's,
) {
    scope.spawn(move || on_cpu(machine, number, space, action));
}

pub(crate) fn write(machine: &Machine, cpu: usize, space: &HostSpace<'_>, addr: VirtAddr, value: u64) {
    on_cpu(machine, cpu, space, |program| program.write_u64(addr, value)).expect("mapped");
}

pub(crate) fn read(machine: &Machine, cpu: usize, space: &HostSpace<'_>, addr: VirtAddr) -> u64 {
    on_cpu(machine, cpu, space, |program| program.read_u64(addr)).expect("mapped")
}

/// A child of a space. It exits when this is dropped, in one step if it was made in one. If the model fails
/// it stays, as its parent does.
pub(crate) struct Child<'m> {
    space: Option<HostSpace<'m>>,
    in_one_step: bool,
}

impl<'m> Deref for Child<'m> {
    type Target = HostSpace<'m>;

    fn deref(&self) -> &HostSpace<'m> {
        self.space.as_ref().expect("it has not exited")
    }
}

impl Drop for Child<'_> {
    fn drop(&mut self) {
        let space = self.space.take();
        if std::thread::panicking() {
            std::mem::forget(space);
        } else if self.in_one_step {
            as_one_step(|| drop(space));
        }
    }
}

/// A child of `space`, made in one step.
pub(crate) fn fork<'m>(space: &HostSpace<'m>) -> Child<'m> {
    let space = as_one_step(|| space.fork()).expect("there is memory enough");
    Child { space: Some(space), in_one_step: true }
}

/// A child of `space`, made by CPU `cpu` while others run.
pub(crate) fn fork_on<'m>(machine: &Machine, cpu: usize, space: &HostSpace<'m>) -> Child<'m> {
    let space = on_cpu(machine, cpu, space, |_| space.fork()).expect("there is memory enough");
    Child { space: Some(space), in_one_step: false }
}

/// The child exits while others run.
pub(crate) fn exit(mut child: Child<'_>) {
    child.in_one_step = false;
}

/// Folios of four pages from here on, wherever they fit.
pub(crate) fn small_folios(machine: &Machine) {
    let four = OrderSet::of(Order::new(2).expect("an order"));
    machine.memory().spaces().huge().change(|policy| policy.with_sizes(four, SizeEnabled::Always));
}

/// A fact that one thread tells another. Not part of what is modelled, so no scheduling point: what was done
/// before `tell` was done before `is_told` returns true.
#[derive(Default)]
pub(crate) struct Fact(AtomicBool);

impl Fact {
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
