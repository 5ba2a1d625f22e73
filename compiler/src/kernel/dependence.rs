//! Dependences of expressions.

use super::{Expr, ExprId, Kernel};
use wgfc_ir::{Dim, Poly};

/// A set of iteration variables (bits 0 to 31), results of reductions (bits 32 to 126) and [`SHARED`].
pub type Deps = u128;

/// The variables that have a bit of their own; all others share that of the last one.
pub const VARIABLES: usize = 32;

/// The bit of variable `%i`.
pub fn var_bit(i: usize) -> Deps {
    1 << i.min(VARIABLES - 1)
}

/// The bit of result `i`.
pub fn acc_bit(i: u32) -> Deps {
    1 << (VARIABLES as u32 + i.min(94))
}

/// The bit of arrays in workgroup memory, which every stage may change.
pub const SHARED: Deps = 1 << 127;

/// The dependences of each expression of a kernel.
#[derive(Clone, Debug)]
pub struct Dependence(Vec<Deps>);

impl Dependence {
    /// The dependences of all expressions of a kernel.
    pub fn of(kernel: &Kernel) -> Dependence {
        let mut d = Dependence(Vec::with_capacity(kernel.body.len()));
        for (id, e, _) in kernel.body.iter() {
            let own = match e {
                Expr::Acc(i) => acc_bit(*i),
                Expr::Shared { .. } => SHARED,
                _ => 0,
            };
            let vars = e.index().into_iter().flat_map(Poly::vars).map(var_bit);
            let operands = kernel.body.operands(id).into_iter().map(|o| d.expr(o));
            let all = vars.chain(operands).fold(own, |a, b| a | b);
            d.0.push(all);
        }
        d
    }

    /// The dependences of an expression.
    pub fn expr(&self, id: ExprId) -> Deps {
        self.0.get(id as usize).copied().unwrap_or(0)
    }

    /// The dependences of an index expression.
    pub fn poly(&self, p: &Poly) -> Deps {
        let vars = p.vars().into_iter().map(var_bit);
        vars.chain(p.data().into_iter().map(|d| self.expr(d))).fold(0, |a, b| a | b)
    }

    /// Whether an index expression grows by exactly 1 with variable `i`.
    pub fn is_unit_stride(&self, p: &Poly, i: usize) -> bool {
        let rest = p - &Poly::var(i);
        self.poly(&rest) & var_bit(i) == 0
    }
}

/// Whether an index expression takes consecutive values for the first `n` values of variable `i`, as the innermost of several axes that
/// the variable is split into does.
pub fn lie_side_by_side(p: &Poly, i: usize, n: i64, domain: &[Dim]) -> bool {
    let at = |v: i64| {
        let vars: Vec<Poly> =
            (0..domain.len()).map(|j| if j == i { Poly::constant(v) } else { Poly::var(j) }).collect();
        p.subst_vars(&vars, domain)
    };
    let first = at(0);
    [1, n - 1].into_iter().all(|v| (&at(v) - &first).as_const() == Some(v))
}
