//! The forms in which loops are computed.

/// How a loop is computed, whether its lanes are invocations or workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Invocations of a workgroup.
    pub threads: u32,
}

/// How a staged loop is computed by workgroups whose invocations keep in registers what no step changes of the stages' sums:
/// neighbours share the terms of all their elements, so that each reads only its terms of what steps change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Neighbours that share the terms of so many elements, one for each in the end.
    pub block: u32,
    /// Invocations of the subgroups in which they add up; their numbers follow each other.
    pub subgroup: u32,
}

/// How a staged loop is computed by several workgroups a lane, which wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Workgroups that share a lane.
    pub groups: u32,
    /// Invocations that share the terms of an element, where there are so many.
    pub lanes: u32,
    /// The combinations are written out, so that values that no step changes stay in registers.
    pub kept: bool,
    /// How often a value is looked for before it is given up.
    pub polls: u32,
}
