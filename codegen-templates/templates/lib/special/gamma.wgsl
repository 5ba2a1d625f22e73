// ln Γ(1 + t)/t from −¼ to ½.
fn log_gamma_near_1(t: f32) -> f32 {
    return ((((((((0.04367728173 * t - 0.1035099581) * t + 0.1321288523) * t - 0.1462371316) * t + 0.169390746) * t
        - 0.2072759022) * t + 0.2705799767) * t - 0.4006873141) * t + 0.8224670601) * t - 0.5772156608;
}

// ln Γ(2 + t)/t from −½ to ½.
fn log_gamma_near_2(t: f32) -> f32 {
    return (((((((-2.505620215e-4 * t + 5.702512503e-4) * t - 1.187484814e-3) * t + 2.878868684e-3) * t
        - 7.385920885e-3) * t + 2.058162544e-2) * t - 6.735229409e-2) * t + 0.322467018) * t + 0.4227843351;
}

// Stirling's series from 8 on (DLMF 5.11.1); below, the recurrence leads to the polynomials.
fn log_gamma_positive(x: f32) -> f32 {
    if (x >= 8.0) {
        let r = 1.0 / x;
        let z = r * r;
        return (x - 0.5) * (precise_log(x) - 1.0) + (0.4189385332046727 + r * ((7.936507937e-4 * z - 2.777777778e-3) * z + 8.333333333e-2));
    }
    var a = x;
    var product = 1.0;
    for (var i = 0; i < 6; i++) {
        if (a > 2.5) {
            a -= 1.0;
            product *= a;
        }
    }
    if (x < 0.75) {
        a += 1.0;
    }
    let one = select(a - 1.0, x, x < 0.75);
    let y = select(one * log_gamma_near_1(one), (a - 2.0) * log_gamma_near_2(a - 2.0), a > 1.5);
    return y + precise_log(product) - select(0.0, precise_log(x), x < 0.75);
}

fn log_gamma_f32(x: f32) -> f32 {
    if (is_nan(x) || x > 0.0) {
        return select(log_gamma_positive(x), x, is_nan(x) || is_inf(x));
    }
    if (x == floor(x)) {
        return float_of_bits(0x7f800000u);
    }
    if (x > -0.5) {
        return log_gamma_positive(x + 1.0) - precise_log(-x);
    }
    // Reflection (DLMF 5.5.3).
    let a = -x;
    let s = sin_half(3.1415926535897932 * abs(a - round(a)));
    return 1.1447298858494002 - precise_log(a * s) - log_gamma_positive(a);
}

// By recurrence and the asymptotic series (DLMF 5.11.2).
fn digamma_positive(x: f32) -> f32 {
    var y = x;
    var sum = 0.0;
    for (var i = 0; i < 6; i++) {
        if (y < 6.0) {
            sum += 1.0 / y;
            y += 1.0;
        }
    }
    let r = 1.0 / y;
    let z = r * r;
    let series = z * (((-4.166666667e-3 * z + 3.968253968e-3) * z - 8.333333333e-3) * z + 8.333333333e-2);
    return ((precise_log(y) - 0.5 * r) - series) - sum;
}

fn digamma_f32(x: f32) -> f32 {
    if (is_nan(x) || is_inf(x)) {
        return select(float_of_bits(0x7fc00000u), x, x > 0.0);
    }
    if (x > 0.0) {
        return digamma_positive(x);
    }
    if (x == 0.0) {
        return bitcast<f32>((bitcast<u32>(x) ^ 0x80000000u) | bitcast<u32>(float_of_bits(0x7f800000u)));
    }
    let f = x - round(x);
    let s = sin_half(3.1415926535897932 * f);
    let c = sin_half(3.1415926535897932 * (0.5 - abs(f)));
    return select(digamma_positive(1.0 - x) - 3.1415926535897932 * c / s, float_of_bits(0x7fc00000u), f == 0.0);
}

// a⁻ˢ.
fn inverse_power(a: f32, s: f32) -> f32 {
    if (s == trunc(s) && s <= 32.0) {
        return pow_f32(a, -s);
    }
    return precise_exp(-s * precise_log(a));
}

// Nine terms, and Euler's and Maclaurin's formula for the others (DLMF 25.11.5).
fn zeta_positive(s: f32, q: f32) -> f32 {
    if (is_inf(s) || is_inf(q)) {
        return select(select(0.0, float_of_bits(0x7f800000u), q < 1.0), 1.0, q == 1.0);
    }
    var a = q;
    var sum = 0.0;
    for (var k = 0; k < 9; k++) {
        sum += inverse_power(a, s);
        a += 1.0;
    }
    let last = inverse_power(a, s);
    let z = 1.0 / (a * a);
    let t1 = s * last / a;
    let t2 = t1 * (s + 1.0) * (s + 2.0) * z;
    let t3 = t2 * (s + 3.0) * (s + 4.0) * z;
    let t4 = t3 * (s + 5.0) * (s + 6.0) * z;
    let t5 = t4 * (s + 7.0) * (s + 8.0) * z;
    let series = 8.333333333e-2 * t1 - 1.388888889e-3 * t2 + 3.306878307e-5 * t3 - 8.267195767e-7 * t4 + 2.087675699e-8 * t5;
    return sum + (a * last / (s - 1.0) + (0.5 * last + series));
}

fn zeta_f32(s: f32, q: f32) -> f32 {
    if (s == 1.0) {
        return float_of_bits(0x7f800000u);
    }
    if (is_nan(s) || is_nan(q) || s < 1.0) {
        return float_of_bits(0x7fc00000u);
    }
    if (q > 0.0) {
        return zeta_positive(s, q);
    }
    if (q == floor(q)) {
        return float_of_bits(0x7f800000u);
    }
    if (s != floor(s)) {
        return float_of_bits(0x7fc00000u);
    }
    let left = zeta_positive(s, ceil(q) - q) - zeta_positive(s, 1.0 - q);
    return zeta_positive(s, q - floor(q)) + select(left, -left, s - 2.0 * floor(s * 0.5) != 0.0);
}

// (ln(1 + t) − t)/t² from −0.35 to 0.45.
fn log1p_rest(t: f32) -> f32 {
    return ((((((((0.08038220332 * t - 0.1284977313) * t + 0.1190195872) * t - 0.1219871529) * t + 0.1419358614) * t
        - 0.1667934098) * t + 0.2000356501) * t - 0.2499981151) * t + 0.333332976) * t - 0.5000000047;
}

// xᵃ·e⁻ˣ/Γ(a + 1); for large a by the distance of x from a, so that no large numbers cancel.
fn gamma_density(a: f32, x: f32) -> f32 {
    if (a < 8.0) {
        return precise_exp(a * precise_log(x) - x - log_gamma_positive(a + 1.0));
    }
    let t = (x - a) / a;
    let far = precise_log(x / a) - t;
    let rest = select(far, t * t * log1p_rest(t), t > -0.35 && t < 0.45);
    let r = 1.0 / a;
    let stirling = ((-2.681327160e-3 * r + 3.472222222e-3) * r + 8.333333333e-2) * r + 1.0;
    return precise_exp(a * rest) * 0.3989422804014327 / (sqrt(a) * stirling);
}

// Where both are large and near one another, uniformly (DLMF 8.12.3): t = x/a − 1.
fn gamma_uniform(a: f32, t: f32, upper: bool) -> f32 {
    let rest = log1p_rest(t);
    let e = t * sqrt(-2.0 * rest);
    let y = e * sqrt(0.5 * a);
    let c0 = (((((3.919263179e-5 * e - 1.78755144e-4) * e + 3.527336861e-4) * e + 1.157407407e-3) * e - 1.481481481e-2) * e
        + 8.333333333e-2) * e - 0.3333333333;
    let c1 = (((2.057613169e-4 * e - 9.902263374e-4) * e + 2.645502646e-3) * e - 3.472222222e-3) * e - 1.851851852e-3;
    let c2 = (7.716049383e-4 * e - 2.68132716e-3) * e + 4.133597884e-3;
    let c3 = 2.294720936e-4 * e + 6.494341564e-4;
    let r = 1.0 / a;
    let part = precise_exp(a * t * t * rest) * 0.3989422804014327 / sqrt(a) * (((c3 * r + c2) * r + c1) * r + c0);
    return select(0.5 * erfc_f32(-y) - part, 0.5 * erfc_f32(y) + part, upper);
}

// Σ xⁿ/((a + 1)…(a + n)) from n = 0.
fn gamma_series(a: f32, x: f32) -> f32 {
    var term = 1.0;
    var sum = 1.0;
    for (var n = 1; n <= 128; n++) {
        term *= x / (a + f32(n));
        sum += term;
        if (term < 3e-8 * sum) {
            break;
        }
    }
    return sum;
}

// The continued fraction (DLMF 8.9.2) by Lentz's method.
fn gamma_fraction(a: f32, x: f32) -> f32 {
    var b = x + 1.0 - a;
    var c = 1e30;
    var d = 1.0 / b;
    var h = d;
    for (var n = 1; n <= 128; n++) {
        let i = f32(n);
        let an = i * (a - i);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (abs(d * c - 1.0) < 6e-8) {
            break;
        }
    }
    return h;
}

// Q for x ≤ 1.1 and a < 1, where P is near 1.
fn gamma_upper_small(a: f32, x: f32) -> f32 {
    let front = a * precise_log(x) - log_gamma_positive(a + 1.0);
    var term = 1.0;
    var sum = 0.0;
    for (var n = 1; n <= 14; n++) {
        let i = f32(n);
        term *= -x / i;
        sum += term * a / (a + i);
    }
    return -expm1_f32(front) - precise_exp(front) * sum;
}

fn gamma_part(a: f32, x: f32, upper: bool) -> f32 {
    let none = is_nan(a) || is_nan(x) || a < 0.0 || x < 0.0 || (a == 0.0 && x == 0.0) || (is_inf(a) && is_inf(x));
    if (none) {
        return float_of_bits(0x7fc00000u);
    }
    if (x == 0.0 || is_inf(a)) {
        return select(0.0, 1.0, upper);
    }
    if (a == 0.0 || is_inf(x)) {
        return select(1.0, 0.0, upper);
    }
    let t = (x - a) / a;
    if (a > 20.0 && abs(t) < 0.3) {
        return gamma_uniform(a, t, upper);
    }
    if (upper && a < 1.0 && x <= 1.1) {
        return gamma_upper_small(a, x);
    }
    if (x <= 1.1 || x <= a) {
        let p = gamma_density(a, x) * gamma_series(a, x);
        return select(p, 1.0 - p, upper);
    }
    let q = a * gamma_density(a, x) * gamma_fraction(a, x);
    return select(1.0 - q, q, upper);
}

fn gamma_p_f32(a: f32, x: f32) -> f32 {
    return gamma_part(a, x, false);
}

fn gamma_q_f32(a: f32, x: f32) -> f32 {
    return gamma_part(a, x, true);
}
