"""The style sheet of report.html."""

STYLE = """
:root { --ink: #1b2733; --soft: #5c6975; --line: #e4e8ec; --paper: #fff; --ground: #f4f6f8; --accent: #1c7ed6; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5; font-size: 15px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 28px 64px; }
header { margin-bottom: 22px; }
.kicker { color: var(--accent); font-weight: 600; font-size: 13px; letter-spacing: .06em;
  text-transform: uppercase; }
h1 { font-size: 32px; line-height: 1.2; margin: 4px 0 6px; letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 0 0 14px; letter-spacing: -.005em; }
.meta, .small { color: var(--soft); margin: 0; }
.small { font-size: 13px; margin-top: 10px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; }
.card .label { color: var(--soft); font-size: 13px; }
.card .value { font-size: 28px; font-weight: 650; letter-spacing: -.01em; margin: 2px 0;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card .band { font-size: 18px; font-weight: 500; color: var(--soft); }
.card .detail { color: var(--soft); font-size: 13px; }
.notes { color: var(--soft); font-size: 13.5px; margin: 16px 0 0; padding-left: 20px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 18px; }
img.figure { display: block; width: 100%; height: auto; margin: 0 0 12px; }
.scroll { overflow-x: auto; margin-bottom: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: 12.5px; }
th, td { padding: 7px 10px; border-bottom: 1px solid var(--line); vertical-align: middle; }
tbody tr:last-child td, tbody tr:last-child th { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
table.facts th { width: 220px; vertical-align: top; }
table.facts td { overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
pre { background: var(--ground); border-radius: 8px; padding: 12px 14px; overflow-x: auto; }
summary { cursor: pointer; color: var(--accent); margin-top: 8px; font-size: 14px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(400px, 1fr)); gap: 14px; }
figure { margin: 0; }
figure.wide { grid-column: 1 / -1; }
figure img { display: block; width: 100%; height: auto; border-radius: 8px; background: var(--ground); }
figcaption { color: var(--soft); font-size: 13px; margin-top: 6px; }
.bar { position: relative; height: 10px; min-width: 160px; background: var(--ground); border-radius: 5px; }
.bar div { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 5px; }
.bar .tail { background: #a5d0f5; }
.bar .median { background: var(--accent); }
@media print { body { background: #fff; } section, .card { break-inside: avoid; } main { padding: 0; } }
"""
