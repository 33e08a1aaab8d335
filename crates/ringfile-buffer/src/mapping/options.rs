//! What a pool asks of a mapping.

/// Selects the page sizes of a pool's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Huge pages if the system provides them transparently, otherwise ordinary pages.
    #[default]
    Auto,
    /// Ordinary pages only. There are more TLB misses, but sparsely used pools waste no memory.
    Never,
    /// Huge pages that the administrator has reserved (`vm.nr_hugepages`), or an error. The pages are taken when the pool
    /// maps memory, so mapping takes as long as clearing them.
    Require,
}

/// How to map memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapOptions {
    /// The least alignment of the mapping, a power of two.
    pub align: usize,
    /// The page sizes.
    pub huge_pages: HugePages,
    /// Whether forked children see zeros.
    pub dont_fork: bool,
}
