//! How the page looks: light and dark as the reader has it, on paper, and on a telephone.
//!
//! The colours are those of Okabe and Ito, which people who see colours differently can tell apart; nothing is said by
//! colour alone.

pub(super) const CSS: &str = r"
:root{color-scheme:light dark;--bg:#f4f6f8;--card:#fff;--ink:#171b21;--soft:#56606c;--line:#d8dee6;--well:#eef1f5;
--busy:#0072b2;--wait:#d55e00;--copy:#b8578c;--sync:#00845f;--none:#8d97a3;--ok:#00724f;--bad:#b34a00;--accent:#005f96;
--shadow:0 1px 2px rgba(20,30,45,.06),0 4px 16px rgba(20,30,45,.05)}
@media (prefers-color-scheme:dark){:root{--bg:#0e1217;--card:#161b22;--ink:#e8edf3;--soft:#9fabb9;--line:#2b343f;
--well:#0f141a;--busy:#4aa5df;--wait:#f0853f;--copy:#e39bc3;--sync:#38c49c;--none:#76818e;--ok:#45c9a2;--bad:#f5924f;
--accent:#74bdec;--shadow:none}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',
'Liberation Sans',Arial,sans-serif;font-variant-numeric:tabular-nums}
main,.top,footer{max-width:1080px;margin:0 auto;padding:0 20px}
.top{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:baseline;padding-top:18px;color:var(--soft);font-size:13px}
.top b{color:var(--ink);font-weight:650;letter-spacing:.01em}
.top nav{margin-left:auto;display:flex;flex-wrap:wrap;gap:2px 14px}
a{color:var(--accent)}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:22px 24px;margin:16px 0;
box-shadow:var(--shadow);min-width:0}
h1{font-size:30px;line-height:1.2;margin:6px 0 10px;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:18px;line-height:1.3;margin:0 0 4px;letter-spacing:-.005em}
h3{font-size:15.5px;line-height:1.35;margin:0;overflow-wrap:anywhere}
p{margin:0 0 10px;max-width:78ch;overflow-wrap:anywhere}
.lead{font-size:17px;line-height:1.5;max-width:72ch}
.how{color:var(--soft);font-size:13.5px;margin-bottom:12px}
.how b,.k{color:var(--ink);font-weight:600}
.kicker{font-size:12px;font-weight:650;letter-spacing:.08em;text-transform:uppercase;color:var(--soft)}
.verdict{border-top:5px solid var(--bad)}.verdict.fine{border-top-color:var(--ok)}
.chips{display:flex;flex-wrap:wrap;gap:8px;margin:0 0 14px}
.chip{border:1px solid var(--line);border-radius:99px;padding:2px 12px;font-size:13.5px;background:var(--well)}
.chip b{font-weight:650}
.bad b{color:var(--bad)}.good b{color:var(--ok)}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:12px;margin:16px 0}
.tile{background:var(--well);border-radius:10px;padding:12px 14px;min-width:0}
.tile .kicker{display:block}
.tile .big{font-size:27px;line-height:1.25;font-weight:650;letter-spacing:-.02em;display:block}
.tile .big small{font-size:14px;font-weight:500;color:var(--soft);letter-spacing:0}
.tile .sub{font-size:12.5px;line-height:1.4;color:var(--soft);display:block}
.do{border-left:4px solid var(--accent);background:var(--well);border-radius:0 8px 8px 0;padding:10px 14px;margin:14px 0 4px}
.do p{margin:0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:16px}.pair>.card{margin:0}
.pair{margin:16px 0}.pair>.missing{align-self:start}.stack>.card:first-child{margin-top:0}.stack>.card:last-child{margin-bottom:0}.stack{min-width:0}
svg{display:block;width:100%;height:auto;font-family:inherit}svg path,svg line,svg text,svg circle{pointer-events:none}
svg.narrow{display:none}
svg text{fill:var(--ink);font-size:12.5px}
svg .small{font-size:11.5px;fill:var(--soft)}
svg .strong{font-weight:650}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .tag{font-size:11px;font-weight:700;text-anchor:middle;fill:var(--card)}
.f-busy{fill:var(--busy)}.f-wait{fill:var(--wait)}.f-copy{fill:var(--copy)}.f-sync{fill:var(--sync)}.f-none{fill:var(--none)}
.f-all{fill:var(--line)}.f-mark{fill:var(--ink)}.f-well{fill:var(--well)}
.hatch{fill:url(#hatch)}.dots{fill:url(#dots)}
svg .axis{stroke:var(--soft);stroke-width:1}svg .grid{stroke:var(--line);stroke-width:1}
svg .whisker{stroke:var(--soft);stroke-width:1;fill:none}
svg .link{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2}
svg .learned{stroke:var(--sync);stroke-width:2;fill:none;stroke-linejoin:round}svg .cap{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:7 4;fill:none}
svg .ref{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:2 3;fill:none}
svg .curve{stroke:var(--busy);stroke-width:2.5;fill:none;stroke-linejoin:round}
svg .band{fill:var(--busy);opacity:.17}
svg .dot{fill:var(--card);stroke:var(--busy);stroke-width:2}
svg .here{fill:var(--wait);stroke:var(--card);stroke-width:2}
svg .over{fill:transparent}svg .over:hover{fill:var(--ink);opacity:.09}
.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 0;padding:0;list-style:none;font-size:13px;color:var(--soft)}
.legend svg{display:inline-block;width:14px;height:14px;vertical-align:-2px;margin-right:6px}
details{margin-top:12px}
summary{cursor:pointer;color:var(--accent);font-size:13.5px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;margin-top:8px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:600;font-size:12.5px;white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap;overflow-wrap:normal;width:1%;padding:5px 22px 5px 4px}
table.facts th{width:38%;font-weight:500;color:var(--soft)}
ol.fixes,ol.found{list-style:none;margin:12px 0 0;padding:0}
.fix{display:grid;grid-template-columns:34px minmax(0,1fr) 300px;gap:4px 16px;padding:16px 0;border-top:1px solid var(--line)}
.fix:first-child{border-top:0;padding-top:6px}
.num{width:30px;height:30px;border-radius:50%;background:var(--accent);color:var(--card);font-weight:700;display:grid;
place-items:center;font-size:14.5px}
pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;background:var(--well);
border:1px solid var(--line);border-radius:8px;padding:8px 12px;margin:8px 0 0;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere}
pre.paste{user-select:all;-webkit-user-select:all}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace}
.gain .big{font-size:21px;font-weight:650;line-height:1.25;display:block}
.gain .sub{font-size:12.5px;line-height:1.45;color:var(--soft);display:block}
.bar{display:block;position:relative;height:8px;border-radius:4px;background:var(--well);border:1px solid var(--line);
margin:6px 0 5px;overflow:hidden}
.bar i{position:absolute;inset:0 auto 0 0;background:var(--busy)}
.bar i.now{background:var(--none)}
.found>li{padding:16px 0;border-top:1px solid var(--line)}.found>li:first-child{border-top:0;padding-top:6px}
.found .head{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline}
.found .head span{font-size:13px;color:var(--soft)}
dl{display:grid;grid-template-columns:150px minmax(0,1fr);gap:5px 16px;margin:8px 0 0;font-size:14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
dd ul,.plain{margin:0;padding-left:18px;list-style:disc}
.plain li{margin:3px 0;max-width:78ch}
footer{color:var(--soft);font-size:12.5px;padding-top:4px;padding-bottom:36px}
@media (max-width:900px){.tiles{grid-template-columns:1fr 1fr}.pair{grid-template-columns:minmax(0,1fr)}
.pair svg.half{max-width:600px}.fix{grid-template-columns:34px minmax(0,1fr)}.fix .gain{grid-column:2;margin-top:8px}}
@media (max-width:680px){main,.top,footer{padding-left:12px;padding-right:12px}.card{padding:16px 14px;border-radius:10px}
svg.wide{display:none}svg.narrow{display:block}h1{font-size:24px}.lead{font-size:16px}.tile .big{font-size:22px}
.tile{padding:10px 11px}.tiles{gap:8px}dl{grid-template-columns:1fr;gap:1px}dd{margin-bottom:7px}.top nav{margin-left:0}
th,td{padding-right:10px}td.n,th.n{padding-right:12px}}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--well:#f2f2f2;--busy:#0072b2;--wait:#d55e00;
--copy:#b8578c;--sync:#00845f;--none:#8d97a3;--ok:#00724f;--bad:#b34a00;--accent:#004f80;--shadow:none}
body{font-size:11.5px}.card{break-inside:avoid;padding:12px 14px;margin:8px 0}.card.long{break-inside:auto}
.top nav{display:none}main{max-width:none;padding:0}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
svg.wide{display:block}svg.narrow{display:none}details:not([open]){display:none}}
";

/// Fillings that several pictures share.
pub(super) const PATTERNS: &str = r#"<svg aria-hidden="true" style="position:absolute;width:0;height:0"><defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" style="fill:var(--card);opacity:.55"/></pattern><pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse"><circle cx="2" cy="2" r="1.2" style="fill:var(--card);opacity:.75"/></pattern></defs></svg>"#;
