// Opens pages of the budget page as a person does, and says what is there: node look_at_budgets.mjs TOOLS ORDERS
import { createRequire } from 'node:module';
const { chromium } = createRequire(process.argv[2] + '/')('playwright-core');
const orders = JSON.parse(process.argv[3]);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu',
  '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'] });
const answers = [];
for (const order of orders) {
  const context = await browser.newContext({ viewport: { width: order.width || 1200, height: 800 },
    colorScheme: order.scheme || 'light' });
  const page = await context.newPage();
  const problems = [], hosts = new Set();
  page.on('requestfailed', request => problems.push(request.url()));
  page.on('request', request => hosts.add(new URL(request.url()).host));
  page.on('console', message => message.type() === 'error' && problems.push(message.text()));
  if (order.login) {
    await page.goto(order.login.address, { waitUntil: 'networkidle' });
    await page.fill('input[name=username]', order.login.user);
    await page.fill('input[name=password]', order.login.password);
    await page.click('button[type=submit]');
    await page.waitForURL(address => !address.pathname.includes('login'), { timeout: 60000 });
  }
  for (const address of order.before || []) await page.goto(address, { waitUntil: 'networkidle' });
  if (order.before || order.login) problems.length = 0;
  await page.goto(order.address);
  let shown = page.mainFrame();
  if (order.frame) {
    const frame = await page.waitForSelector('iframe', { timeout: 60000 });
    shown = await frame.contentFrame();
    await shown.waitForSelector('h1', { timeout: 60000 });
  }
  for (const label of order.click || []) {
    // the page before has a heading, too
    await Promise.all([shown.waitForNavigation({ timeout: 60000 }), shown.click(`a:text-is("${label}")`)]);
    await shown.waitForSelector('h1');
  }
  // By the keyboard alone: the first stop skips the menu.
  let focus = [];
  for (let stop = 0; stop < (order.tabs || 0); stop++) {
    await page.keyboard.press('Tab');
    focus.push(await shown.evaluate(() => document.activeElement.textContent.trim().slice(0, 40)));
  }
  await shown.evaluate(() => document.activeElement.blur());
  const seen = await shown.evaluate(() => {
    const rows = [...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()));
    const heads = [...document.querySelectorAll('thead th')].map(head => head.innerText.trim());
    const parts = color => color.match(/[\d.]+/g).slice(0, 3).map(Number);
    const light = color => {
      const [r, g, b] = parts(color).map(part => part / 255).map(part => part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
      return .2126 * r + .7152 * g + .0722 * b;
    };
    const contrast = (one, other) => (Math.max(light(one), light(other)) + .05) / (Math.min(light(one), light(other)) + .05);
    const back = getComputedStyle(document.body).backgroundColor;
    const texts = [...document.querySelectorAll('td, p, a, dt, dd, h1, th')].filter(one => !one.closest('.skip'));
    return {
      heading: document.querySelector('h1').innerText, heads, rows, back: light(back),
      contrast: Math.min(...texts.map(one => contrast(getComputedStyle(one).color, back))),
      bars: [...document.querySelectorAll('.bar .spent, .bar .reserved')].map(one => parseFloat(one.style.width)),
      cut: [...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).length,
      overflow: document.documentElement.scrollWidth > window.innerWidth,
    };
  });
  if (order.picture) await page.screenshot({ path: order.picture, fullPage: !order.frame });
  answers.push({ ...seen, focus, problems, hosts: [...hosts], url: shown.url() });
  await context.close();
}
console.log(JSON.stringify(answers));
await browser.close();
