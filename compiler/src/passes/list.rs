//! The list of passes.

use super::{
    Pass, Run, Scope, Section, control_flow, forms, large_weights, loops, outputs, supported, wide_concats,
};
use crate::error::{Diagnostic, Errors};
use crate::fuse::{few_channels, key_parts, scatter};
use crate::options::{Activations, Fusion, Precision, Technique, WeightBits};
use crate::rewrite::{
    canonical, flattened, grouped, long_rows, long_sums, parts, recognise, region, rules, sorts, winograd,
};

/// A pass on the graph of the model that always runs.
const GRAPH: Pass = Pass {
    name: "",
    about: "",
    section: Section::Rewrite,
    on: &[Scope::Model],
    fusion: Fusion::None,
    technique: None,
    needed: None,
    run: Run::Graph(|_, _| Ok(())),
};

/// A rewrite of the model and of its bodies.
const REWRITE: Pass = Pass { on: &[Scope::Model, Scope::Body], ..GRAPH };
/// A pass towards kernels.
const LOWER: Pass = Pass { section: Section::Lower, on: &[Scope::Model, Scope::Step], ..GRAPH };
/// A pass on kernels.
const KERNELS: Pass = Pass { section: Section::Kernels, run: Run::Kernels(|_, _| Ok(())), ..GRAPH };

const CLEAN: Pass = Pass {
    name: "clean",
    about: "Folds constants, composes views and maps, and merges equal nodes.",
    needed: Some("every other pass presumes that equal computations have the same form"),
    run: Run::Graph(|g, _| all(canonical::clean(g))),
    ..REWRITE
};

/// A pass that raises composed operators.
const RAISE: Pass = Pass { fusion: Fusion::Full, technique: Some(Technique::Approximate), ..REWRITE };

const NAN_GUARDS: Pass = Pass {
    name: "nan-guards",
    about: "Removes tests of a softmax for NaN that cannot succeed.",
    run: Run::Graph(|g, cx| {
        cx.report.nan_guards += recognise::nan_guard::remove(g).map_err(internal)?;
        Ok(())
    }),
    ..RAISE
};

const ATTENTION: Pass = Pass {
    name: "attention",
    about: "Raises products around a softmax to `attention`.",
    run: Run::Graph(|g, cx| {
        cx.report.attentions += recognise::attention::recognise(g).map_err(internal)?;
        Ok(())
    }),
    ..RAISE
};

const ATTENTION_SCALES: Pass = Pass {
    name: "attention-scales",
    about: "Moves constant factors of queries and keys into the scale of their attention.",
    run: Run::Graph(|g, _| all(recognise::attention::scales(g))),
    ..RAISE
};

/// The passes of a compilation, in the order in which they run. Those of one section stand together.
pub static PASSES: &[Pass] = &[
    Pass {
        name: "quotients",
        about: "Marks the quotients that must be rounded correctly, as integers are computed from them.",
        section: Section::Import,
        needed: Some("integers that are computed from quotients depend on their last bit"),
        run: Run::Graph(|g, _| all(crate::quotients::mark(g))),
        ..GRAPH
    },
    Pass {
        name: "quantise",
        about: "Quantises the weights of products (`--weights`).",
        section: Section::Import,
        needed: Some("`--weights` asks for it: compile without that option"),
        run: Run::Graph(|g, cx| {
            if cx.options.weights != WeightBits::Own {
                let quantised = crate::weights::quantise(g, cx.options, &cx.stats.operators)?;
                let (weights, bytes) = (quantised.weights, quantised.bytes);
                tracing::debug!(stage = "weights", weights, bytes, "done");
                cx.stats.quantised = Some(quantised);
                super::verify(g, "weights")?;
            }
            Ok(())
        }),
        ..GRAPH
    },
    Pass {
        name: "control-flow",
        about: "Replaces conditions by both branches and a selection, and unrolls short loops.",
        needed: Some("a condition has no kernel"),
        run: Run::Graph(|g, cx| all(control_flow::flatten(g, cx))),
        ..REWRITE
    },
    CLEAN,
    // These come before scales are folded into weights, which would then differ.
    NAN_GUARDS,
    ATTENTION,
    ATTENTION_SCALES,
    Pass { fusion: Fusion::Full, technique: Some(Technique::Approximate), ..CLEAN },
    Pass {
        name: "flattened",
        about: "Moves reshapes behind products.",
        fusion: Fusion::Elementwise,
        run: Run::Graph(|g, _| match flattened::unflatten(g).map_err(internal)? {
            0 => Ok(()),
            _ => all(canonical::clean(g)),
        }),
        ..REWRITE
    },
    Pass {
        name: "rules",
        about: "Saturates regions of the graph with the rules (docs/rules.md), which also raise softmax and norms.",
        fusion: Fusion::Elementwise,
        run: Run::Graph(|g, cx| {
            let rules = rules::of(cx.options.fuses(Technique::Approximate));
            cx.report.rules = region::saturate(g, rules, &cx.options.expect).map_err(internal)?;
            Ok(())
        }),
        ..REWRITE
    },
    Pass { fusion: Fusion::Elementwise, ..CLEAN },
    NAN_GUARDS,
    ATTENTION,
    ATTENTION_SCALES,
    Pass { fusion: Fusion::Full, technique: Some(Technique::Approximate), ..CLEAN },
    Pass {
        name: "merge",
        about: "Merges products of one operand: Q, K and V; gate and up.",
        fusion: Fusion::Full,
        technique: Some(Technique::Merge),
        run: Run::Graph(|g, cx| {
            let rules = rules::share(cx.options.profile.max_binding_bytes);
            cx.report.merged =
                region::saturate_products(g, &rules, &cx.options.expect).map_err(internal)?.merged;
            all(canonical::clean(g))
        }),
        ..REWRITE
    },
    Pass {
        name: "grouped",
        about: "Groups the rows of products whose weights are looked up, as of experts, by weight.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| match grouped::group(g, &cx.options.expect).map_err(internal)? {
            0 => Ok(()),
            _ => all(canonical::clean(g)),
        }),
        ..REWRITE
    },
    Pass {
        name: "long-rows",
        about: "Cuts long rows of reductions into parts that several workgroups reduce.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| {
            cx.report.rows_cut = long_rows::cut(g, &cx.options.profile.speeds).map_err(internal)?;
            Ok(())
        }),
        ..REWRITE
    },
    Pass {
        name: "row-parts",
        about: "Cuts long rows of norms and softmax into parts whose statistics are combined.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| {
            cx.report.rows_cut += parts::cut(g, &cx.options.profile.speeds).map_err(internal)?;
            Ok(())
        }),
        ..REWRITE
    },
    Pass {
        name: "sorts",
        about: "Replaces the largest elements of long rows by sorts of parts that are merged.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| {
            let short = match cx.scope {
                Scope::Body => sorts::SHORT_IN_LOOPS,
                _ => sorts::SHORT,
            };
            cx.report.sorted = sorts::expand(g, &cx.options.profile, short).map_err(internal)?;
            Ok(())
        }),
        ..REWRITE
    },
    Pass { fusion: Fusion::Full, ..CLEAN },
    Pass {
        name: "winograd",
        about: "Computes convolutions of 3 × 3 windows with fewer multiplications.",
        fusion: Fusion::Full,
        technique: Some(Technique::Winograd),
        run: Run::Graph(|g, cx| {
            if cx.options.precision == Precision::F32 {
                let done = winograd::transform(g, &cx.options.profile, &cx.options.expect);
                cx.report.transformed = done.map_err(internal)?;
            }
            Ok(())
        }),
        ..GRAPH
    },
    Pass {
        name: "long-sums",
        about: "Cuts the sums of products into slices that several workgroups compute.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| {
            let profile = &cx.options.profile;
            let rounded = profile.has_matrix_units() && cx.options.precision == Precision::F16;
            cx.report.sums_cut = long_sums::cut(g, profile, &cx.options.expect, rounded).map_err(internal)?;
            Ok(())
        }),
        ..GRAPH
    },
    Pass {
        name: "large-weights",
        about: "Cuts the rows of weights that are larger than half of the bindings of a kernel together.",
        needed: Some("a kernel binds only so many buffers, each of at most so many bytes"),
        run: Run::Graph(|g, cx| large_weights::cut(g, &cx.options.profile).map(drop)),
        ..LOWER
    },
    Pass {
        name: "wide-concats",
        about: "Makes a concatenation of more operands than a kernel binds a tree of concatenations.",
        needed: Some("a kernel binds only so many buffers"),
        run: Run::Graph(|g, cx| wide_concats::split(g, cx.options.profile.max_storage_buffers as usize)),
        ..LOWER
    },
    Pass {
        name: "supported",
        about: "Refuses bodies of loops and branches that compute a size.",
        needed: Some("kernels would have no size"),
        run: Run::Graph(|g, _| supported::check(g)),
        ..LOWER
    },
    Pass {
        name: "ordered-scatters",
        about: "Sorts the updates of combining scatters by row where that is faster.",
        on: &[Scope::Model],
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| all(scatter::ordered::lower(g, cx.options))),
        ..LOWER
    },
    // In the bodies of loops sorts of rows stay whole, since sorts of short rows need no kernel of their own there.
    Pass {
        name: "sorts",
        about: "Sorts rows in parts in the steps of loops that are split.",
        on: &[Scope::Step],
        fusion: Fusion::Full,
        run: Run::Graph(|g, cx| all(sorts::expand(g, &cx.options.profile, sorts::SHORT))),
        ..LOWER
    },
    Pass {
        name: "loop-forms",
        about: "Makes each loop a scan, with as much as possible moved out of its body.",
        needed: Some("a loop with a condition has no kernel"),
        run: Run::Graph(loops::prepare),
        ..LOWER
    },
    Pass {
        name: "scatters",
        about: "Brings scatters of many updates into a form in which their order is arbitrary.",
        needed: Some("devices combine integers only without an order"),
        run: Run::Graph(|g, _| all(scatter::lower(g))),
        ..LOWER
    },
    Pass {
        name: "reshaped-outputs",
        about: "Makes an output that is a reshape of another value that value.",
        fusion: Fusion::Full,
        run: Run::Graph(|g, _| {
            outputs::look_through(g);
            Ok(())
        }),
        ..LOWER
    },
    Pass {
        name: "key-parts",
        about: "Adds a copy behind attention whose split keys its readers cannot combine, or only more slowly than a kernel of its own.",
        on: &[Scope::Model],
        fusion: Fusion::Full,
        technique: Some(Technique::KeyParts),
        run: Run::Graph(|g, cx| {
            let copies = key_parts::add_copies(g, cx.options).map_err(internal)?;
            cx.findings.bans.materialise.extend(copies);
            Ok(())
        }),
        ..LOWER
    },
    Pass {
        name: "few-channels",
        about: "Gives convolutions of few channels a padded copy of their input where that is faster.",
        on: &[Scope::Model],
        fusion: Fusion::Full,
        technique: Some(Technique::Layouts),
        run: Run::Graph(|g, cx| {
            let copies = few_channels::copy(g, cx.options).map_err(internal)?;
            cx.findings.bans.materialise.extend(copies);
            Ok(())
        }),
        ..LOWER
    },
    Pass {
        name: "loop-lanes",
        about: "Maps loops whose positions are independent to lanes; the others are split into steps.",
        needed: Some("fusion makes kernels of loops by it; `--without loops` splits all of them"),
        run: Run::Graph(loops::map),
        ..LOWER
    },
    Pass {
        name: "loop-operands",
        about: "Transposes the operands of products in loops that run in workgroups.",
        run: Run::Graph(loops::lay_out),
        ..LOWER
    },
    Pass {
        name: "fold-units",
        about: "Computes kernels whose results are the same in every run.",
        run: Run::Graph(loops::fold),
        ..LOWER
    },
    Pass {
        name: "precision",
        about: "Stores f32 values as f16 where their range allows it (`--precision f16`).",
        needed: Some("`--precision` asks for it: compile without that option"),
        run: Run::Kernels(forms::halve),
        ..KERNELS
    },
    Pass {
        name: "layout",
        about: "Chooses the order in memory of the axes of tensors between kernels, and of weights.",
        fusion: Fusion::Full,
        technique: Some(Technique::Layouts),
        run: Run::Kernels(forms::arrange),
        ..KERNELS
    },
    Pass {
        name: "forms",
        about: "Unrolls sums of few terms, and rounds the operands of products that matrix units then take.",
        run: Run::Kernels(forms::fit),
        ..KERNELS
    },
    Pass {
        name: "rounded",
        about: "Lets products with quantised weights round the other operand to 8 bits (`--activations`).",
        needed: Some("`--activations` asks for it: compile without that option"),
        run: Run::Kernels(|kernels, cx| {
            if cx.options.activations == Activations::Q8 {
                crate::kernel::integers::allow(kernels);
            }
            Ok(())
        }),
        ..KERNELS
    },
];

fn internal(e: String) -> Errors {
    Diagnostic::internal(e).into()
}

/// The end of a pass whose figures nobody needs.
fn all<T>(done: Result<T, String>) -> Result<(), Errors> {
    done.map(|_| ()).map_err(internal)
}
