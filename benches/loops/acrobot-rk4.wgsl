// Acrobot, "book" equations, steps of 0.2 s by the classical method of Runge and Kutta, under a network of 6 → 16 tanh → 3.
// A thread to an individual, its genes copied to memory of its own. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<f32>;
@group(0) @binding(1) var<storage, read> first: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> reward: array<f32>;
@group(0) @binding(3) var<storage, read_write> last: array<vec4<f32>>;

const PI = 3.141592653589793;

fn wrapped(angle: vec2<f32>) -> vec2<f32> {
    return angle - 2.0 * PI * floor((angle + PI) * (1.0 / (2.0 * PI)));
}

// The speeds of both links, and their accelerations.
fn slope(s: vec4<f32>, torque: f32) -> vec4<f32> {
    let cosine = cos(s.y);
    let sine = sin(s.y);
    let d1 = 3.5 + cosine;
    let d2 = 1.25 + 0.5 * cosine;
    let phi2 = 4.9 * cos(s.x + s.y - PI / 2.0);
    let phi1 = -0.5 * s.w * sine * (s.w + 2.0 * s.z) + 14.7 * cos(s.x - PI / 2.0) + phi2;
    let moved = torque + d2 / d1 * phi1 - 0.5 * s.z * s.z * sine - phi2;
    let second = moved / (1.25 - d2 * d2 / d1);
    return vec4(s.zw, -(d2 * second + phi1) / d1, second);
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var g: array<f32, 163>;
    for (var i = 0u; i < 163u; i++) {
        g[i] = genomes[id.x * 163u + i];
    }
    var state = first[id.x];
    var total = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        let cosine = cos(state.xy);
        let sine = sin(state.xy);
        var action = vec3(g[160], g[161], g[162]);
        for (var i = 0u; i < 16u; i++) {
            let h = tanh(
                cosine.x * g[i] + sine.x * g[16u + i] + cosine.y * g[32u + i] + sine.y * g[48u + i]
                + state.z * g[64u + i] + state.w * g[80u + i] + g[96u + i]
            );
            action += h * vec3(g[112u + 3u * i], g[113u + 3u * i], g[114u + 3u * i]);
        }
        // The first of the largest.
        var torque = select(-1.0, 0.0, action.y > action.x);
        torque = select(torque, 1.0, action.z > max(action.x, action.y));
        let k1 = slope(state, torque);
        let k2 = slope(state + 0.1 * k1, torque);
        let k3 = slope(state + 0.1 * k2, torque);
        let k4 = slope(state + 0.2 * k3, torque);
        state += (0.2 / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4);
        let most = vec2(4.0 * PI, 9.0 * PI);
        state = vec4(wrapped(state.xy), clamp(state.zw, -most, most));
        let angle = state.xy;
        total += select(-0.01, 1.0, -cos(angle.x) - cos(angle.x + angle.y) > 1.0);
    }
    reward[id.x] = total;
    last[id.x] = state;
}
