//! The rules. Each comment is `before → after`; `c`, `k` are constants.
//!
//! There is no general commutativity or associativity: `orient-*` puts the operands of a product or
//! sum in one order, and constants gather only next to constants.

use super::guards::*;
use super::products::Sharing;
use super::term::{Table, Term};
use egg::{Rewrite, rewrite};
use std::sync::LazyLock;
use wgfc_ir::NormKind;

/// A rule over [`Term`]s.
pub type Rule = Rewrite<Term, Table>;

/// The rules that a compilation uses: the exact ones, or all. Their patterns are parsed once in a process, which takes as long as
/// compiling a small model.
pub fn of(approximate: bool) -> &'static [Rule] {
    static EXACT: LazyLock<Vec<Rule>> = LazyLock::new(exact);
    static ALL: LazyLock<Vec<Rule>> =
        LazyLock::new(|| exact().into_iter().chain(approx()).chain(raise()).collect());
    if approximate { &ALL } else { &EXACT }
}

/// Rules that keep every bit of the result (but for the sign of a zero).
pub fn exact() -> Vec<Rule> {
    vec![
        // c + x → x + c, and the operand of the result's shape before one that broadcasts
        rewrite!("orient-add";      "(add ?a ?b)" => "(add ?b ?a)" if goes_first("?b", "?a")),
        // c · x → x · c
        rewrite!("orient-mul";      "(mul ?a ?b)" => "(mul ?b ?a)" if goes_first("?b", "?a")),
        // x + 0 → x
        rewrite!("add-zero";        "(add ?x ?c)" => "?x" if is("?c", 0.0) if same_type("?x")),
        // x − 0 → x
        rewrite!("sub-zero";        "(sub ?x ?c)" => "?x" if is("?c", 0.0) if same_type("?x")),
        // x · 1 → x
        rewrite!("mul-one";         "(mul ?x ?c)" => "?x" if is("?c", 1.0) if same_type("?x")),
        // x / 1 → x
        rewrite!("div-one";         "(div ?x ?c)" => "?x" if is("?c", 1.0) if same_type("?x")),
        // x · −1 → −x
        rewrite!("mul-minus-one";   "(mul ?x ?c)" => "(neg ?x)" if is("?c", -1.0) if same_type("?x")),
        // −(−x) → x
        rewrite!("neg-neg";         "(neg (neg ?x))" => "?x"),
        // x + (−y) → x − y
        rewrite!("add-neg";         "(add ?x (neg ?y))" => "(sub ?x ?y)"),
        // x − (−y) → x + y
        rewrite!("sub-neg";         "(sub ?x (neg ?y))" => "(add ?x ?y)"),
        // |−x| → |x|
        rewrite!("abs-neg";         "(abs (neg ?x))" => "(abs ?x)"),
        // Σ −x → −Σ x
        rewrite!("sum-of-neg";      "(reduce.sum ?a (neg ?x))" => "(neg (reduce.sum ?a ?x))"),
        // not not x → x
        rewrite!("not-not";         "(not (not ?x))" => "?x"),
        // max(max(x, y), y) → max(x, y): relu of relu
        rewrite!("max-max";         "(max (max ?x ?y) ?y)" => "(max ?x ?y)"),
        // min(min(x, y), y) → min(x, y)
        rewrite!("min-min";         "(min (min ?x ?y) ?y)" => "(min ?x ?y)"),
        // x¹ → x
        rewrite!("pow-one";         "(pow ?x ?c)" => "?x" if is("?c", 1.0) if same_type("?x")),
        // x² → x · x
        rewrite!("pow-two";         "(pow ?x ?c)" => "(mul ?x ?x)" if is("?c", 2.0) if same_type("?x")),
        // x / 2ⁿ → x · 2⁻ⁿ
        rewrite!("div-power-of-2";  "(div ?x ?c)" => { times_reciprocal("?x", "?c") } if power_of_two("?c")),
        // 1 / x → recip x
        rewrite!("one-div";         "(div ?c ?x)" => "(recip ?x)" if is("?c", 1.0) if same_type("?x") if float()),
        // if c { x } else { x } → x
        rewrite!("select-same";     "(select ?c ?x ?x)" => "?x" if same_type("?x")),
        // x as its own type → x
        rewrite!("cast-same";       "(cast ?t ?x)" => "?x" if same_type("?x")),
        // (x as wider) as t → x as t
        rewrite!("cast-widened";    "(cast ?t (cast ?u ?x))" => "(cast ?t ?x)" if widens("?x", "?u")),
        // view of view → one view
        rewrite!("view-view";       "(view ?m (view ?n ?x))" => { composed("?m", "?n", "?x") }),
        // identity view → its operand
        rewrite!("view-identity";   "(view ?m ?x)" => { unless_moved("?m", "?x") }),
        // view of (x · c) → (view of x) · c
        rewrite!("mul-after-view";  "(view ?m (mul ?x ?c))" => { mul_after_view("?m", "?x", "?c") }),
        // (view of y) · c → view of (y · c), for a constant that the view permits it for
        rewrite!("mul-before-view"; "(mul (view ?m ?y) ?c)" => { mul_before_view("?m", "?y", "?c") }
            if konst("?c") if same_mul("?m", "?c")),
        // narrow(norm(widen x)) → norm x: norms and softmax compute in f32 whatever they store
        rewrite!("rms-cast";        "(cast ?t (norm.rms ?a ?e (cast ?u ?x)))" => "(norm.rms ?a ?e ?x)"
            if widens("?x", "?u") if same_type("?x")),
        rewrite!("layer-cast";      "(cast ?t (norm.layer ?a ?e (cast ?u ?x)))" => "(norm.layer ?a ?e ?x)"
            if widens("?x", "?u") if same_type("?x")),
        rewrite!("softmax-cast";    "(cast ?t (softmax ?a (cast ?u ?x)))" => "(softmax ?a ?x)"
            if widens("?x", "?u") if same_type("?x")),
    ]
}

/// Rules after which the result may differ in its last bits.
pub fn approx() -> Vec<Rule> {
    vec![
        // x / c → x · (1/c)
        rewrite!("div-const";       "(div ?x ?c)" => "(mul ?x (recip ?c))" if konst("?c") if finite("?c") if normal_reciprocal("?c") if float()),
        // 1 / √x → rsqrt x
        rewrite!("recip-sqrt";      "(recip (sqrt ?x))" => "(rsqrt ?x)"),
        // x / √y → x · rsqrt y
        rewrite!("div-sqrt";        "(div ?x (sqrt ?y))" => "(mul ?x (rsqrt ?y))"),
        // x · (1/y) → x / y
        rewrite!("mul-recip";       "(mul ?x (recip ?y))" => "(div ?x ?y)"),
        // x^½ → √x, x^−½ → rsqrt x, x⁻¹ → 1/x
        rewrite!("pow-half";        "(pow ?x ?c)" => "(sqrt ?x)" if is("?c", 0.5) if same_type("?x")),
        rewrite!("pow-minus-half";  "(pow ?x ?c)" => "(rsqrt ?x)" if is("?c", -0.5) if same_type("?x")),
        rewrite!("pow-minus-one";   "(pow ?x ?c)" => "(recip ?x)" if is("?c", -1.0) if same_type("?x") if float()),
        // (x · c) · k → x · (c · k)
        rewrite!("mul-mul";         "(mul (mul ?x ?c) ?k)" => "(mul ?x (mul ?c ?k))"
            if konst("?c") if konst("?k") if normal_product("?c", "?k")),
        // (x + c) + k → x + (c + k)
        rewrite!("add-add";         "(add (add ?x ?c) ?k)" => "(add ?x (add ?c ?k))" if gather("?x", "?c", "?k", false)),
        // (x − c) + k → x + (k − c)
        rewrite!("sub-add";         "(add (sub ?x ?c) ?k)" => "(add ?x (sub ?k ?c))" if gather("?x", "?c", "?k", true)),
        // (a @ b + c) · k → (a @ b) · k + c · k
        rewrite!("mul-of-add";      "(mul (add ?x ?c) ?k)" => "(add (mul ?x ?k) (mul ?c ?k))"
            if product("?x") if konst("?c") if konst("?k") if finite("?c") if finite("?k") if float()),
        // (a @ b − c) · k → (a @ b) · k − c · k
        rewrite!("mul-of-sub";      "(mul (sub ?x ?c) ?k)" => "(sub (mul ?x ?k) (mul ?c ?k))"
            if product("?x") if konst("?c") if konst("?k") if finite("?c") if finite("?k") if float()),
        // Σ x · c → (Σ x) · c, for one value c
        rewrite!("sum-of-mul";      "(reduce.sum ?a (mul ?x ?c))" => "(mul (reduce.sum ?a ?x) ?c)"
            if scalar("?c") if moderate("?c") if float()),
        // Σ (a @ b) → (Σ a) @ b, a @ (Σ b) or, along what both have, one product
        rewrite!("sum-of-product";  "(reduce.sum ?s (contract ?l ?a ?b))" => { sum_of_product("?s", "?l", "?a", "?b") }),
        // (a · c) @ b → (a @ b) · c, for one value c
        rewrite!("scale-left";      "(contract ?l (mul ?a ?c) ?b)" => "(mul (contract ?l ?a ?b) ?c)" if scalar("?c") if moderate("?c")),
        rewrite!("scale-right";     "(contract ?l ?a (mul ?b ?c))" => "(mul (contract ?l ?a ?b) ?c)" if scalar("?c") if moderate("?c")),
        // (a @ w) · c → a @ (w · c): scales and batch norms are folded into constant weights
        rewrite!("scale-into-b";    "(mul (contract ?l ?a ?b) ?c)" => { mul_into_operand("?l", "?a", "?b", "?c", 1) }
            if konst("?b") if konst("?c") if finite("?c")),
        rewrite!("scale-into-a";    "(mul (contract ?l ?a ?b) ?c)" => { mul_into_operand("?l", "?a", "?b", "?c", 0) }
            if konst("?a") if konst("?c") if finite("?c")),
        // (a @ b) · c → (a · c) @ b: the cost decides for the smallest of the three places
        rewrite!("scale-to-a";      "(mul (contract ?l ?a ?b) ?c)" => { mul_into_operand("?l", "?a", "?b", "?c", 0) }
            if scalar("?c") if moderate("?c")),
        rewrite!("scale-to-b";      "(mul (contract ?l ?a ?b) ?c)" => { mul_into_operand("?l", "?a", "?b", "?c", 1) }
            if scalar("?c") if moderate("?c")),
    ]
}

/// The rule that merges products of one operand, where no merged weight has more than `max_bytes`.
pub fn share(max_bytes: u64) -> Vec<Rule> {
    let sharing = Sharing { max_bytes };
    // x @ w₁ + b₁, x @ w₂ + b₂, … → slices of x @ [w₁ w₂ …] + [b₁ b₂ …]
    Rewrite::new("shared-operand", sharing, sharing).into_iter().collect()
}

/// Rules that recognise raised operators; they change rounding as the [`approx`] ones do.
pub fn raise() -> Vec<Rule> {
    vec![
        // (Σ x) · (1/n) → (Σ x) / n
        rewrite!("mean";            "(mul (reduce.sum ?a ?x) ?r)" => { mean_over("?a", "?x", "?r") }),
        // exp(x − max x) / Σ exp(x − max x) → softmax x
        rewrite!("softmax";
            "(div (exp (sub ?x (reduce.max ?a ?x))) (reduce.sum ?a (exp (sub ?x (reduce.max ?a ?x)))))"
            => { softmax_over("?a", "?x", false) }),
        // exp x / Σ exp x → softmax x
        rewrite!("softmax-bare";
            "(div (exp ?x) (reduce.sum ?a (exp ?x)))" => { softmax_over("?a", "?x", false) }),
        // (x − max x) − log Σ exp(x − max x) → log softmax x
        rewrite!("log-softmax";
            "(sub (sub ?x (reduce.max ?a ?x)) (log (reduce.sum ?a (exp (sub ?x (reduce.max ?a ?x))))))"
            => { softmax_over("?a", "?x", true) }),
        // log (softmax x) → log softmax x
        rewrite!("log-of-softmax";  "(log (softmax ?a ?x))" => { log_softmax("?a", "?x") }),
        // x · rsqrt(mean(x · x) + ε) → rms norm
        rewrite!("rms-norm";
            "(mul ?x (rsqrt (add (div (reduce.sum ?a (mul ?x ?x)) ?n) ?e)))"
            => { norm_over(NormKind::Rms, "?a", "?n", "?e", "?x") }),
        // d · rsqrt(mean(d · d) + ε), d = x − mean x → layer norm
        rewrite!("layer-norm";
            "(mul (sub ?x (div (reduce.sum ?a ?x) ?n))
                  (rsqrt (add (div (reduce.sum ?a (mul (sub ?x (div (reduce.sum ?a ?x) ?n))
                                                       (sub ?x (div (reduce.sum ?a ?x) ?n)))) ?n) ?e)))"
            => { norm_over(NormKind::Layer, "?a", "?n", "?e", "?x") }),
        // the norms of narrow floats, whose means are computed in f32 → rms norm, layer norm
        rewrite!("rms-norm-narrow";
            "(mul ?x (rsqrt (add (cast ?t (div (reduce.sum ?a (cast ?u (mul ?x ?x))) ?n)) ?e)))"
            => { norm_over(NormKind::Rms, "?a", "?n", "?e", "?x") } if widens("?x", "?u")),
        rewrite!("layer-norm-narrow";
            "(mul (sub ?x (cast ?t (div (reduce.sum ?a (cast ?u ?x)) ?n)))
                  (rsqrt (add (cast ?t (div (reduce.sum ?a (cast ?u
                      (mul (sub ?x (cast ?t (div (reduce.sum ?a (cast ?u ?x)) ?n)))
                           (sub ?x (cast ?t (div (reduce.sum ?a (cast ?u ?x)) ?n)))))) ?n)) ?e)))"
            => { norm_over(NormKind::Layer, "?a", "?n", "?e", "?x") } if widens("?x", "?u")),
    ]
}
