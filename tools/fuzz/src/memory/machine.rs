//! The machine that an input runs on.

use quire_arch::PagingFormat;
use quire_frame::FailPoints;
use quire_host::{HostConfig, HostPlatform, Machine};
use quire_mm::{
    InUse, MemoryConfig, Techniques,
    frame::PcpTechnique,
    space::{Error, Layout, Limits, Overcommit, Space},
};

/// Tags for address spaces, the shared one included: fewer than spaces, so that some have to share.
pub(super) const TAGS: u32 = 4;

/// A machine so small that its memory is soon full, in paranoid mode.
pub(super) struct Small<F: PagingFormat> {
    pub(super) machine: Machine<F>,
    layout: Layout,
    /// Spaces are not empty when they begin.
    pub(super) furnished: bool,
}

impl<F: PagingFormat> Small<F> {
    /// The machine that the byte `setting` selects.
    pub(super) fn new(setting: u8) -> Self {
        let bit = |bit: u8| setting & (1 << bit) != 0;
        let ram = if bit(3) { 1 << 20 } else { 2 << 20 };
        let host = HostConfig { asids: TAGS, ..HostConfig::with_ram(ram) }.cpus(2).paranoid();
        let mut techniques = Techniques::default();
        techniques.pcp = if bit(2) { PcpTechnique::None } else { PcpTechnique::OrderZero };
        let config = MemoryConfig {
            techniques,
            overcommit: match setting & 3 {
                0 | 1 => Overcommit::default(),
                2 => Overcommit::Always,
                _ => Overcommit::Never { limit_pages: 600 },
            },
            min_free_kib: if bit(4) { None } else { Some(0) },
            ..MemoryConfig::default()
        };
        let machine = Machine::new(&host, config).expect("so much RAM is enough to start");
        let layout = Layout { top_down: !bit(5), ..Layout::standard(F::USER_END) };
        Self { machine, layout, furnished: !bit(6) }
    }

    pub(super) fn create_space(&self) -> Result<Space<'_, HostPlatform<F>>, Error> {
        self.machine.memory().create_space_with(self.layout, Limits::default())
    }

    pub(super) fn fail_points(&self) -> &FailPoints {
        self.machine.memory().frames().fail_points()
    }

    /// Panics with everything that an audit finds.
    #[track_caller]
    pub(super) fn assert_audit(&self) {
        let findings = self.machine.audit();
        assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
    }

    /// What is in use when all epochs have passed.
    pub(super) fn in_use(&self) -> InUse {
        self.machine.memory().in_use()
    }
}
