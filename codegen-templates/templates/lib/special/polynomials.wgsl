// Whether a degree is a number of steps that is done: otherwise the value is 0 or NaN.
fn has_degree(n: f32, most: f32) -> bool {
    return n > -1.0 && n < most + 1.0;
}

fn without_degree(n: f32) -> f32 {
    return select(float_of_bits(0x7fc00000u), 0.0, n <= -1.0);
}

// Chebyshev's polynomials differ in the one of degree 1.
fn chebyshev(x: f32, n: f32, first: f32) -> f32 {
    if (!has_degree(n, 4096.0)) {
        return without_degree(n);
    }
    let steps = min(u32(max(n, 0.0)), 4096u);
    var p = 1.0;
    var q = first;
    for (var k = 0u; k < steps; k++) {
        let next = 2.0 * x * q - p;
        p = q;
        q = next;
    }
    return p;
}

fn chebyshev_t_f32(x: f32, n: f32) -> f32 {
    return chebyshev(x, n, x);
}

fn chebyshev_u_f32(x: f32, n: f32) -> f32 {
    return chebyshev(x, n, 2.0 * x);
}

fn chebyshev_v_f32(x: f32, n: f32) -> f32 {
    return chebyshev(x, n, 2.0 * x - 1.0);
}

fn chebyshev_w_f32(x: f32, n: f32) -> f32 {
    return chebyshev(x, n, 2.0 * x + 1.0);
}

// a·(x·q − k·p).
fn hermite(x: f32, n: f32, a: f32) -> f32 {
    if (!has_degree(n, 128.0)) {
        return without_degree(n);
    }
    let steps = min(u32(max(n, 0.0)), 4096u);
    var p = 1.0;
    var q = a * x;
    for (var k = 0u; k < steps; k++) {
        let next = a * (x * q - f32(k + 1u) * p);
        p = q;
        q = next;
    }
    return p;
}

fn hermite_h_f32(x: f32, n: f32) -> f32 {
    return hermite(x, n, 2.0);
}

fn hermite_he_f32(x: f32, n: f32) -> f32 {
    return hermite(x, n, 1.0);
}

fn laguerre_l_f32(x: f32, n: f32) -> f32 {
    if (!has_degree(n, 4096.0)) {
        return without_degree(n);
    }
    let steps = min(u32(max(n, 0.0)), 4096u);
    var p = 1.0;
    var q = 1.0 - x;
    for (var k = 0u; k < steps; k++) {
        let d = f32(k + 1u);
        let next = ((2.0 * d + 1.0 - x) * q - d * p) / (d + 1.0);
        p = q;
        q = next;
    }
    return p;
}

fn legendre_p_f32(x: f32, n: f32) -> f32 {
    if (!has_degree(n, 4096.0)) {
        return without_degree(n);
    }
    let steps = min(u32(max(n, 0.0)), 4096u);
    var p = 1.0;
    var q = x;
    for (var k = 0u; k < steps; k++) {
        let d = f32(k + 1u);
        let next = ((2.0 * d + 1.0) * x * q - d * p) / (d + 1.0);
        p = q;
        q = next;
    }
    return p;
}
