// Search runs in a worker, which browsers refuse to pages that are opened as files. There a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: source, onload: done, onerror: failed })
        inside.document.head.append(script)
      })
      inside.importScripts = (...sources) => sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      this.ready = load(address)
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
