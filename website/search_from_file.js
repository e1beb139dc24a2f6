// A page that was opened as a file may start no worker. Searching is then the work of a hidden frame, which sees the
// same messages: what is sent to it arrives there as an event, and what it posts arrives here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.arrive(new MessageEvent("message", { data }));
      this.inside.importScripts = (...others) => others.forEach((other) => this.load(other));
      this.ready = this.load(address);
    }
    load(address) {
      return new Promise((done) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = done;
        this.inside.document.body.appendChild(script);
      });
    }
    arrive(event) {
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
