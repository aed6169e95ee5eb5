import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;

import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/** Writes each JUnit test's outcome as TAP to the file that the property "report" names, as soon as it ends. */
public class TapListener implements TestExecutionListener {
  private final PrintStream report;

  public TapListener() throws IOException {
    report = new PrintStream(new FileOutputStream(System.getProperty("report"), true), true, "UTF-8");
  }

  @Override
  public void executionFinished(TestIdentifier test, TestExecutionResult result) {
    switch (result.getStatus()) {
      case SUCCESSFUL: write("ok", test, ""); break;
      case FAILED: write("not ok", test, ""); break;
      case ABORTED: write("ok", test, " # SKIP aborted"); break;
    }
  }

  @Override
  public void executionSkipped(TestIdentifier test, String reason) {
    write("ok", test, " # SKIP disabled");
  }

  private void write(String outcome, TestIdentifier test, String remark) {
    if (test.isTest()) {
      MethodSource source = (MethodSource) test.getSource().get();
      report.println(outcome + " - " + source.getClassName() + "." + test.getLegacyReportingName() + remark);
    }
  }
}
