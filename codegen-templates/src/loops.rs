//! Parameters of `loops.wgsl`: a kernel as a list of statements, each of which is one construct.

use crate::Template;
use serde::Serialize;

/// A kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Kernel {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Arrays in workgroup memory.
    pub shared: Vec<Shared>,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// The statements of the entry point.
    pub list: Vec<Statement>,
}

impl Template for Kernel {
    const NAME: &'static str = "loops.wgsl";
}

/// An array in workgroup memory.
#[derive(Clone, Debug, Serialize)]
pub struct Shared {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub ty: String,
    /// The number of its elements.
    pub len: u32,
}

/// A statement.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Statement {
    /// Declarations of values, stores and assignments.
    Text {
        /// Lines, indented.
        text: String,
    },
    /// The declaration of a variable.
    Variable {
        /// Its name.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A loop.
    For {
        /// The name of its variable, which runs from 0 to below `extent`.
        var: String,
        /// An `i32` expression.
        extent: String,
        /// The statements of a point.
        body: Vec<Statement>,
    },
    /// One of two lists.
    If {
        /// A `bool` expression.
        condition: String,
        /// Executed where it is true.
        body: Vec<Statement>,
        /// Executed where it is false.
        otherwise: Vec<Statement>,
    },
    /// The end of a loop or of the kernel.
    Leave {
        /// A `bool` expression.
        condition: String,
        /// `break` or `return`.
        how: &'static str,
    },
    /// A barrier.
    Barrier {
        /// Whether what was stored in buffers becomes visible too.
        storage: bool,
    },
}

/// Whether a name has a meaning in WGSL, or is reserved by it, so that nothing else may have it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.split_whitespace().any(|r| r == name)
}

/// Keywords, words that the language keeps for later, and names that kernels use for what is predeclared.
const RESERVED: &str = "
alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let loop
override requires return struct switch true var while NULL Self abstract active alignas alignof as asm asm_fragment async
attribute auto await become cast catch class co_await co_return co_yield coherent column_major common compile
compile_fragment concept const_cast consteval constexpr constinit crate debugger decltype delete demote demote_to_helper do
dynamic_cast enum explicit export extends extern external fallthrough filter final finally friend from fxgroup get goto
groupshared highp impl implements import inline instanceof interface layout lowp macro macro_rules match mediump meta mod
module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent noperspective null
nullptr of operator package packoffset partition pass patch pixelfragment precise precision premerge priv protected pub
public readonly ref regardless register reinterpret_cast require resource restrict self set shared sizeof smooth snorm
static static_assert static_cast std subroutine super target template this thread_local throw trait try type typedef typeid
typename typeof union unless unorm unsafe unsized use using varying virtual volatile wgsl where with writeonly yield abs
acos acosh all any array asin asinh atan atan2 atanh atomic bitcast bool ceil clamp cos cosh countOneBits cross dims dot exp
exp2 f16 f32 floor fma fract group groups i32 local log log2 main mat2x2 mat3x3 mat4x4 max min mix modf pow ptr round select
sign sin sinh sqrt step tan tanh trunc u32 vec2 vec3 vec4 workgroup";
