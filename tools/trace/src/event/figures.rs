//! What Linux itself counted.

/// Linux's figures of one address space, read from `/proc` just before its end. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinuxFigures {
    /// Why the address space ended.
    pub cause: FiguresCause,
    /// The process id in Linux.
    pub pid: u32,
    /// `VmPeak`: the largest total of all mappings.
    pub vm_peak: u64,
    /// `VmSize`: the total of all mappings.
    pub vm_size: u64,
    /// `VmHWM`: the most resident memory.
    pub vm_hwm: u64,
    /// `VmRSS`: resident memory.
    pub vm_rss: u64,
    /// `RssAnon`: the anonymous part of it.
    pub rss_anon: u64,
    /// `RssFile`: the part that belongs to files.
    pub rss_file: u64,
    /// `RssShmem`: the part that is shared memory.
    pub rss_shmem: u64,
    /// `VmData`: private writable mappings.
    pub vm_data: u64,
    /// `VmStk`: stacks.
    pub vm_stk: u64,
    /// `VmPTE`: page tables.
    pub vm_pte: u64,
    /// `VmSwap`: memory that is swapped out.
    pub vm_swap: u64,
    /// The number of mappings.
    pub mappings: u64,
    /// The largest `VmPTE` seen: sampled, so a lower bound.
    pub vm_pte_peak: u64,
    /// The largest number of mappings seen: sampled, so a lower bound.
    pub mappings_peak: u64,
    /// The most threads of the process that lived at once while it had this image.
    pub threads_peak: u32,
    /// Faults without input, since the image began.
    pub minor_faults: u64,
    /// Faults with input, since the image began.
    pub major_faults: u64,
    /// Processor time since the image began, in nanoseconds; 0 if it is not known.
    pub processor_ns: u64,
}

/// Why an address space ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FiguresCause {
    /// The process calls exec.
    Exec,
    /// Its last thread exits.
    #[default]
    Exit,
}
