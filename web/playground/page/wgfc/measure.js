import{WgfcError as be}from"./index.js";var we="Chrome and Edge have it since version 113, on Android since 121; Safari since 26; Firefox since 141, first on Windows";function z(n){return new be("no-webgpu",`there is no WebGPU: ${ye(n)}. Slower, and without it, \`wgfc/cpu\` runs .onnx models`)}function ye({api:n,secure:e,agent:t}){let r=/Linux/.test(t)&&!/Android/.test(t);if(!n&&e===!1)return"browsers give it to secure pages alone: serve this page by https, or from localhost";if(!n)return`this browser has none, or it is turned off. ${we}${r?". In Chrome for Linux it may need chrome://flags/#enable-unsafe-webgpu":""}`;let o=/Firefox/.test(t)?"about:support":/Chrome|Edg/.test(t)?"chrome://gpu":void 0,i=r?"; Chrome for Linux may need to be started with --enable-unsafe-webgpu --enable-features=Vulkan":"";return`the browser finds no adapter: the GPU or its driver is missing or blocked${o?`, which ${o} tells`:""}. Update the driver, and turn hardware acceleration on${i}`}function $(){let{navigator:n,isSecureContext:e}=globalThis;return{api:!!n?.gpu,secure:e,agent:n?.userAgent??""}}import{WgfcError as ve}from"./index.js";function Pe(n){return new ve("aborted","aborted by the caller's signal",{cause:n.reason})}function j(n){if(n?.aborted)throw Pe(n)}async function N(n,e,t=16){let r=!0,o=e.finally(()=>r=!1);o.catch(()=>{});for(let i=0;r&&i<t;i++)n.pushErrorScope("internal"),await n.popErrorScope().catch(()=>{});return o}var Se=64,ke=.5,v=class{#e;#o;#i;#r;constructor(e,t){[this.#e,this.#o]=[e,t],this.#r=e.features.has("timestamp-query"),this.#r&&(this.#i={set:e.createQuerySet({type:"timestamp",count:2}),ticks:e.createBuffer({size:16,usage:516}),read:e.createBuffer({size:16,usage:9})})}dispose(){for(let e of Object.values(this.#i??{}))e.destroy()}async both(e){j(this.#o);let{queue:t}=this.#e,r=this.#r?this.#i:void 0,o=performance.now(),i=this.#e.createCommandEncoder(),a=i.beginComputePass(r?{timestampWrites:{querySet:r.set,beginningOfPassWriteIndex:0,endOfPassWriteIndex:1}}:{});e(a),a.end(),r&&(i.resolveQuerySet(r.set,0,2,r.ticks,0),i.copyBufferToBuffer(r.ticks,0,r.read,0,16)),t.submit([i.finish()]),await N(this.#e,t.onSubmittedWorkDone(),Se);let u=(performance.now()-o)/1e3;if(!r)return[u,0];await r.read.mapAsync(1);let[s,c]=new BigUint64Array(r.read.getMappedRange());return r.read.unmap(),[u,Number(c-s)/1e9]}async time(e){let[t,r]=await this.both(e);return r>0?r:t}async warmUp(e){let t=performance.now();for(let[r,o]=[0,1/0];performance.now()-t<ke*1e3&&r<4;){let i=1/0;for(let a=0;a<3;a++){let[u,s]=await this.both(e);this.#r&&=s>0&&s<1.01*u+2e-4,i=Math.min(i,s>0?s:u)}r=i>.99*o?r+1:0,o=Math.min(o,i)}}};var Ge=["apple","arm","broadcom","img-tec","imagination","intel","qualcomm","samsung"];function P(n){let{vendor:e="",architecture:t="",description:r=""}=n??{};return/swiftshader/i.test(`${t} ${r}`)?"swiftshader":n?.isFallbackAdapter||/llvmpipe|lavapipe|basic render/i.test(`${t} ${r}`)?"software":e==="nvidia"?"discrete":Ge.includes(e)?"integrated":void 0}var Ue={bandwidth:28e11,flops_f32:57344e9,flops_f16:114688e9,flops_matrix:448e12,dispatch_cost:4e-6,cores:128,resident:262144,memory_latency:600,operation:15e-10,barrier:4e-8,workgroup_bandwidth:6e10,cache_bandwidth:3e13,resident_workgroups:1,exchange:15e-7},Ee={bandwidth:7e10,flops_f32:24e11,flops_f16:48e11,flops_matrix:48e11,dispatch_cost:8e-6,cores:8,resident:16384,memory_latency:400,operation:3e-9,barrier:8e-8,workgroup_bandwidth:3e10,cache_bandwidth:6e11,resident_workgroups:1,exchange:3e-6},Ae={bandwidth:11e8,flops_f32:66e9,flops_f16:13e9,flops_matrix:13e9,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:30,operation:9e-9,barrier:16e-7,workgroup_bandwidth:61e8,cache_bandwidth:62e8,resident_workgroups:1,exchange:5e-6},Oe={bandwidth:21e8,flops_f32:125e8,flops_f16:125e8,flops_matrix:125e8,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:17,operation:21e-9,barrier:103e-7,workgroup_bandwidth:18e8,cache_bandwidth:21e8,resident_workgroups:1,exchange:2e-5},Ie={discrete:Ue,integrated:Ee,software:Ae,swiftshader:Oe};function S(n){let e=P(n);return e&&Ie[e]}function Ce(n){return"adapterInfo"in n?n.adapterInfo:n.info}function F(n){let e=Ce(n),t=S(e),{subgroupMinSize:r,subgroupMaxSize:o}=e??{};return{...Me(n.limits,n.features,r===o?r:void 0),...t?{speeds:t}:{}}}function Me(n,e,t){let r=new Set(e),o={f16:r.has("shader-f16")},i=(a,...u)=>{let s=u.filter(c=>c!==void 0);s.length&&(o[a]=Math.min(...s))};return i("max_storage_buffers",n.maxStorageBuffersPerShaderStage),i("max_invocations",n.maxComputeInvocationsPerWorkgroup),i("max_workgroup_bytes",n.maxComputeWorkgroupStorageSize),i("max_binding_bytes",n.maxStorageBufferBindingSize,n.maxBufferSize),i("max_workgroups",n.maxComputeWorkgroupsPerDimension),t&&r.has("subgroups")&&(o.subgroup=t),{version:1,limits:o}}var Re="speeds?1";var De=async n=>n===!1?void 0:globalThis.caches?.open(n===!0?"wgfc":n);function Be(n,{vendor:e,architecture:t,device:r,description:o}){let i=[e,t,r,o,globalThis.navigator?.userAgent??""];return`https://wgfc.invalid/${n}&${encodeURIComponent(i.join("|"))}`}async function Te(n,e,t,r){await(e&&await De(r).catch(()=>{}))?.put(Be(n,e),new Response(JSON.stringify(t))).catch(()=>{})}var K=(n,e,t=!0)=>Te(Re,n,e,t);import{WgfcError as Ke}from"./index.js";var H=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = vec4(T(turns[1]));
    var p = vec4(T(id.x & 255u));
    var q = p + 1.0;
    var r = p + 2.0;
    var s = p + 3.0;
    for (var i = 0u; i < n; i++) {
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
    }
    let sum = dot(p + q, r + s);
    if (sum == 12345.0) { out[0] = f32(sum); }
}
`;var Y=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> shared_: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32) {
    let n = turns[0];
    shared_[id] = f32(id);
    for (var i = 0u; i < n; i++) {
        workgroupBarrier();
        shared_[(id + 1u) & 255u] += 1.0;
    }
    if (shared_[id] == -1.0) { out[0] = 1.0; }
}
`;var Q=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> data: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let n = turns[0];
    var sum = vec4(0.0);
    for (var i = 0u; i < n; i++) {
        let first = ((i + group.x) & 15u) * 4096u + id;
        for (var j = 0u; j < 4096u; j += 1024u) {
            sum += data[first + j] + data[first + j + 256u] + data[first + j + 512u] + data[first + j + 768u];
        }
    }
    if (dot(sum, sum) == 12345.0) { out[0] = sum.x; }
}
`;var V=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = f32(turns[1]);
    var x = f32(id.x);
    for (var i = 0u; i < n; i++) {
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
    }
    if (x == 12345.0) { out[0] = x; }
}
`;var J=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> next: array<u32>;
@group(0) @binding(2) var<storage, read_write> place: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var at = place[0] & turns[2];
    let n = turns[0];
    storageBarrier();
    for (var i = 0u; i < n; i++) {
        at = next[at];
    }
    if (id.x == 0u) { place[0] = at; }
}
`;var X=`@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f32>>;
// Thread t of T copies the elements t, t + T, t + 2T, \u2026.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let stride = groups.x * 256u;
    let n = arrayLength(&src);
    for (var i = id.x; i < n; i += stride) {
        dst[i] = src[i];
    }
}
`;var Z=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < turns[2]; i += groups.x * 256u) {
        next[i] = (i + turns[3]) & (turns[2] - 1u);
    }
}
`;var ee=`@group(0) @binding(0) var<storage, read_write> data: array<f32, 256>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    data[id.x] += 1.0;
}
`;var He=32768,Ye=16,k=4,G=4,Qe=150,Ve=1.1,Je=.65,Xe=64,re=["warming up","latencies","arithmetic","cores","caches","memory","dispatches"];async function Wr(n,e={}){let{cache:t=!0,signal:r}=e,o=n&&"queue"in n?n:void 0,i=o?void 0:n??await navigator.gpu?.requestAdapter({powerPreference:"high-performance"});if(!o&&!i)throw z($());let a=["timestamp-query","shader-f16"].filter(d=>i?.features.has(d)),u=o??await i.requestDevice({requiredFeatures:a}),s=o?o.adapterInfo:i.info;u.pushErrorScope("out-of-memory"),u.pushErrorScope("validation");let c=new U(u,["software","swiftshader"].includes(P(s)??""),r);try{let d=await c.speeds(f=>e.onProgress?.({stage:re[f],done:f,total:re.length})),m={...F(o??i),device:Ze(s),speeds:{...S(s),...d}};return t!==!1&&await K(s,m.speeds,t),m}finally{let d=await Promise.all([0,1].map(()=>u.popErrorScope().catch(()=>null)));c.dispose(),o||u.destroy();let m=d.find(f=>f);if(m)throw new Ke("validation",`measuring: ${m.message}`)}}function Ze(n){return[n.vendor,n.architecture,n.device,n.description].filter(Boolean).join(" ")}var y=({pipeline:n,group:e},t,r)=>o=>{o.setPipeline(n),o.setBindGroup(0,e);for(let i=0;i<r;i++)o.dispatchWorkgroups(t)},U=class{#e;#o;#i=[];#r;#n;constructor(e,t,r){[this.#e,this.#o]=[e,t],this.#r=this.#a(256),this.#n=new v(e,r)}dispose(){for(let e of this.#i)e.destroy();this.#n.dispose()}async speeds(e){let{limits:t,features:r}=this.#e;e(0);let[o,i]=["f32","f16"].map(p=>H.replaceAll("T(",`${p}(`)),a=[V,o,Y,Z,J,Q,X,ee,...r.has("shader-f16")?[`enable f16;
${i}`]:[]],u=await Promise.all(a.map(p=>this.#f(p))),[s,c,d,m,f,ne,oe,ie,E]=u,h=this.#o,A=Math.min(t.maxStorageBufferBindingSize,t.maxBufferSize),ae=p=>2**Math.floor(Math.log2(Math.min(p,A))),[b,O,I,se]=[256,256,4096,1<<20].map(p=>this.#a(p)),C=this.#a(ae(h?8<<20:128<<20)),l=(p,...g)=>this.#c(p,[this.#r,...g]);for(let p of[C,I]){let g=p.size/4;this.#s(1,1,g,4127%g|1),await this.#n.time(y(l(m,p),h?8:1024,1))}this.#s(1,1,4294967295,0);let x=l(c,b),w=h?64:4096;await this.#m(x,w),e(1);let ue=await this.#t(l(s,b),1)/8,ce=await this.#t(l(d,b),1),de=await this.#t(l(f,C,O),1);e(2);let[fe,M]=[await this.#t(x,1),await this.#t(x,w)],R=w*256*Xe,_=R/M,D=E?R/await this.#t(l(E,b),w):_;e(3);let B=Math.max(1,w*fe/M);this.#s(1,1,0,0);let pe=64*await this.#l(l(f,I,O),h?256:16384);e(4);let T=l(ne,se,b),L=h?16:2048,W=65536/await this.#t(T,1),me=L*65536/await this.#t(T,L);e(5);let q=await this.#h(oe,Math.min(A,h?16<<20:128<<20));e(6);let le=await this.#g(this.#c(ie,[this.#a(1024)])),he=B*256/_,ge={bandwidth:q,flops_f32:_,flops_f16:D,flops_matrix:D,dispatch_cost:le,cores:B,resident:pe,memory_latency:de/he,operation:Je*ue,barrier:ce,workgroup_bandwidth:W,cache_bandwidth:Math.max(me,W,q)};return Object.fromEntries(Object.entries(ge).map(([p,g])=>[p,Number(Math.min(Math.max(g,1e-12),1e18).toPrecision(4))]))}#a(e){let t=this.#e.createBuffer({label:"measuring",size:e,usage:140});return this.#i.push(t),t}async#f(e){let r=[...e.matchAll(/var<storage, (read|read_write)>/g)].map(i=>i[1]==="read"?"read-only-storage":"storage").map((i,a)=>({binding:a,visibility:4,buffer:{type:i}})),o=this.#e.createPipelineLayout({bindGroupLayouts:[this.#e.createBindGroupLayout({entries:r})]});return this.#e.createComputePipelineAsync({layout:o,compute:{module:this.#e.createShaderModule({code:e}),entryPoint:"main"}})}#c(e,t){let r=t.map((o,i)=>({binding:i,resource:{buffer:o}}));return{pipeline:e,group:this.#e.createBindGroup({layout:e.getBindGroupLayout(0),entries:r})}}#s(...e){this.#e.queue.writeBuffer(this.#r,0,Uint32Array.from(e))}#p(e,t,r){return this.#n.both(y(e,t,r))}async#u(e,t,r,o){return this.#s(t),this.#n.time(y(e,r,o))}async#m(e,t){let[r]=await this.#d(e,t);this.#s(r),await this.#n.warmUp(y(e,t,1))}async#d(e,t){for(let r=16;;r*=4){let o=1/0;for(let i=0;i<2;i++)o=Math.min(o,await this.#u(e,r,t,1));if(o>=k/1e3)return[r,1];if(!(r<He/2))return[r,Math.min(Ye,Math.ceil(k/1e3/o))]}}async#t(e,t){let r=performance.now(),[o,i]=await this.#d(e,t),a=[o/4,o/2,o].map(s=>s*i),u=[1/0,1/0,1/0];for(let s=0;;s++){for(let f of[0,1,2])u[f]=Math.min(u[f],await this.#u(e,a[f]/i,t,i));let{each:c,straight:d}=te(a,u),m=performance.now()-r>Qe;if(s>=G-1&&d||s>=4*G||m)return c}}async#l(e,t){let[r,o]=await this.#d(e,1),i=async u=>{let[s,c]=[1/0,1/0];for(let d=0;d<3;d++)s=Math.min(s,await this.#u(e,r,1,o)),c=Math.min(c,await this.#u(e,r,u,o));return c<1.5*s},a=1;for(;a<t&&await i(a*2);)a*=2;if(a>=t)return a;for(let u=a*2;u-a>Math.max(1,a/8);){let s=a+Math.floor((u-a)/2);await i(s)?a=s:u=s}return a}async#h(e,t){let r=this.#c(e,[this.#a(t),this.#a(t)]),o=this.#e.limits.maxComputeWorkgroupsPerDimension,i=Math.min(o,Math.ceil(t/16/(this.#o?256*64:256*8))),a=async d=>{let m=1/0;for(let f=0;f<G;f++)m=Math.min(m,await this.#n.time(y(r,i,d)));return m},u=await a(1),s=Math.max(2,Math.min(32,Math.ceil(k/1e3/u))),c=await a(s);return 2*t*s/(c>u?(c-u)*s/(s-1):c)}async#g(e){let t=[100,200,400],r=[1/0,1/0,1/0];for(let o=0;o<8;o++)for(let i of[0,1,2])r[i]=Math.min(r[i],(await this.#p(e,4,t[i]))[0]);return te(t,r).each}};function te(n,e){let t=(a,u)=>(e[u]-e[a])/(n[u]-n[a]),[r,o,i]=[t(0,1),t(1,2),t(0,2)];return i>0?{each:i,straight:r>0&&o>0&&Math.max(r,o)<=Ve*Math.min(r,o)}:{each:e[2]/n[2],straight:!1}}export{Wr as measure,te as slope};
