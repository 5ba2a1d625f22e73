// A policy of 8 → 16 tanh → 6 sigmoid that trades 16 assets over the rows of signals; the product of its returns.
// A thread to an individual, its genes in pairs in memory of its own. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> signals: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> fitness: array<f32>;

fn total(v: array<vec4<f32>, 4>) -> f32 {
    return dot(v[0] + v[1] + v[2] + v[3], vec4(1.0));
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var g: array<vec2<f32>, 123>;
    for (var i = 0u; i < 123u; i++) {
        g[i] = genomes[id.x * 123u + i];
    }
    var value = 1.0;
    var peak = 1.0;
    var worst = 0.0;
    var memory = vec2(0.0);
    var held: array<vec4<f32>, 4>;
    for (var step = 0u; step < STEPS; step++) {
        let row = step * 9u;
        let market = signals[row];
        let ratio = value / peak;
        let falling = min(1.0, 5.0 * (1.0 - ratio));
        let rising = clamp(10.0 * (ratio - 1.0), 0.0, 1.0);
        // The third input is 0.
        var out = array<vec2<f32>, 3>(g[120], g[121], g[122]);
        for (var i = 0u; i < 8u; i++) {
            let z = market.x * g[i] + falling * g[8u + i] + rising * g[24u + i] + market.y * g[32u + i]
                + market.z * g[40u + i] + memory.x * g[48u + i] + memory.y * g[56u + i] + g[64u + i];
            let h = tanh(clamp(z, vec2(-20.0), vec2(20.0)));
            for (var o = 0u; o < 3u; o++) {
                out[o] += h.x * g[72u + 6u * i + o] + h.y * g[75u + 6u * i + o];
            }
        }
        for (var o = 0u; o < 3u; o++) {
            out[o] = 1.0 / (1.0 + exp(-clamp(out[o], vec2(-20.0), vec2(20.0))));
        }
        let leverage = 1.0 + 2.0 * out[0].y;
        let cap = (1.0 - 0.8 * out[0].x) * (0.2 + 0.8 * out[1].y);
        memory = out[2];
        var wanted: array<vec4<f32>, 4>;
        for (var i = 0u; i < 4u; i++) {
            wanted[i] = max(signals[row + 1u + i], vec4(0.0));
        }
        let sum = max(total(wanted), 1e-8);
        for (var i = 0u; i < 4u; i++) {
            wanted[i] = min(wanted[i] / sum, vec4(cap));
        }
        let capped = max(total(wanted), 1e-8);
        var earned = vec4(0.0);
        var paid = vec4(0.0);
        for (var i = 0u; i < 4u; i++) {
            let share = wanted[i] / capped;
            let change = select(share - held[i], vec4(0.0), abs(share - held[i]) < vec4(0.05));
            held[i] = select(share, held[i], change == vec4(0.0));
            paid += change * select(vec4(-0.0002), vec4(0.0004), change > vec4(0.0));
            earned += held[i] * signals[row + 5u + i];
        }
        value *= 1.0 + leverage * (dot(earned, vec4(1.0)) - dot(paid, vec4(1.0))) - 1e-5;
        peak = max(peak, value);
        worst = max(worst, 1.0 - value / peak);
        if value <= 0.05 {
            break;
        }
    }
    fitness[id.x] = select(value, -9999.0, worst > 0.85);
}
